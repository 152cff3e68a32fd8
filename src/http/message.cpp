#include "http/message.h"

#include <algorithm>
#include <charconv>
#include <ctime>

namespace mdi {

namespace {

void append_line(std::string_view name, std::string_view value, std::string& out) {
  const size_t begin = out.size();
  out += name;
  out += ": ";
  out += value;
  std::replace_if(
      out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(),
      [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }, ' ');
  out += "\r\n";
}

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc)};
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::string_view http_reason(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 301:
      return "Moved Permanently";
    case 302:
      return "Found";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    case 529:
      return "Overloaded";
    default:
      return "";
  }
}

std::string answer_head(int status, std::string_view content_type, const Headers& extra, Framing framing, size_t length,
                        bool close) {
  std::string out;
  out.reserve(256);
  out += "HTTP/1.1 ";
  out += std::to_string(status);
  out += ' ';
  out += http_reason(status);
  out += "\r\n";
  if (!content_type.empty()) append_line("content-type", content_type, out);
  const bool no_body = status == 204 || status == 304;  // RFC 9110, 8.6: no content-length
  if (framing == Framing::kLength && !no_body) append_line("content-length", std::to_string(length), out);
  if (framing == Framing::kChunked) append_line("transfer-encoding", "chunked", out);
  append_line("date", date_now(), out);
  for (const auto& [name, value] : extra) append_line(name, value, out);
  if (close) append_line("connection", "close", out);
  out += "\r\n";
  return out;
}

void append_chunk(std::string_view text, std::string& out) {
  char digits[20];
  const auto end = std::to_chars(digits, digits + sizeof digits, text.size(), 16).ptr;
  out.append(digits, end);
  out += "\r\n";
  out += text;
  out += "\r\n";
}

}  // namespace mdi
