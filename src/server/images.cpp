#include "server/images.h"

#include <sodium.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/printable.h"
#include "engine/image_prompt.h"
#include "server/fetch.h"
#include "server/fields.h"
#include "server/service.h"

namespace mdi {

namespace {

constexpr std::string_view kData = "data:";

// The scheme of a URL may be in capitals (RFC 3986, 3.1).
bool has_scheme(std::string_view url, std::string_view scheme) {
  return url.size() >= scheme.size() && std::equal(scheme.begin(), scheme.end(), url.begin(), [](char small, char c) {
           return (c >= 'A' && c <= 'Z' ? char(c + 32) : c) == small;
         });
}

[[noreturn]] void refuse(const std::string& path, const std::string& message, const char* code) {
  throw ApiError(ApiErrorKind::kInvalid, path + ": " + message, path, code);
}

// What mdi::Error says, about the member `path`.
[[noreturn]] void refuse(const std::string& path, const Error& error) {
  const std::string_view what = error.what();
  refuse(path, std::string(what.starts_with(path + ": ") ? what.substr(path.size() + 2) : what), "invalid_image");
}

// How closely the client wants the image looked at: this model looks at all in the same way.
void check_detail(Fields& fields) { fields.word("detail", {"auto", "low", "high", "original"}); }

std::shared_ptr<void> lease(ImageBudget& budget, size_t bytes, size_t most) {
  if (budget.fetch_add(bytes) + bytes > most) {
    budget -= bytes;
    throw ApiError(ApiErrorKind::kBusy, "Too many images are waiting; try again later.", {}, "queue_full");
  }
  return {nullptr, [&budget, bytes](void*) { budget -= bytes; }};
}

}  // namespace

std::vector<std::byte> decode_base64(std::string_view text, const std::string& where) {
  std::vector<std::byte> bytes(text.size() / 4 * 3 + 3);
  size_t size = 0;
  const char* end = nullptr;
  // Line ends are in what some encoders write.
  const int failed = sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(),
                                       text.size(), "\r\n", &size, &end, sodium_base64_VARIANT_ORIGINAL);
  if (failed != 0 || end != text.data() + text.size()) {
    const auto at = failed != 0 || end == nullptr ? std::string("wrong padding or character")
                                                  : "character " + std::to_string(end - text.data()) + " is none of it";
    throw Error(where, "expected base64 text, found something else: " + at);
  }
  if (size == 0) throw Error(where, "expected base64 text, found none");
  bytes.resize(size);
  return bytes;
}

std::vector<std::byte> decode_data_url(std::string_view url, const std::string& where) {
  const size_t comma = url.find(',');
  if (!has_scheme(url, kData) || comma == std::string_view::npos) {
    throw Error(where, "expected data:image/...;base64,..., found " + printable(url, 60));
  }
  std::string head(url.substr(kData.size(), comma - kData.size()));
  std::transform(head.begin(), head.end(), head.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  if (!head.ends_with(";base64")) {
    throw Error(where, "expected data:image/...;base64,..., found " + printable(url.substr(0, comma), 60));
  }
  return decode_base64(url.substr(comma + 1), where);
}

// Where the image's bytes come from; `path` becomes that of the member that holds them.
std::vector<std::byte> ImageReader::bytes_of(const OrderedJson& part, std::string& path) const {
  const auto from_url = [&](const std::string& url) {
    if (has_scheme(url, kData)) return decode_data_url(url, path);
    const bool web = has_scheme(url, "http://") || has_scheme(url, "https://");
    if (!web) refuse(path, "expected a data: URL with base64, found " + printable(url, 60), "invalid_image_url");
    if (!service_.options().allow_remote_images) {
      refuse(path, "this server fetches no images; send it as a data: URL or base64", "remote_images_off");
    }
    std::vector<std::byte> bytes;
    try {
      service_.wait_aside([&] {
        bytes = fetch(url, path, {.max_bytes = policy_.max_bytes, .stopped = [&] { return service_.cutting(); }});
      });
    } catch (const Error&) {
      if (service_.cutting()) throw ApiError(ApiErrorKind::kUnavailable, "The server is shutting down.");
      throw;
    }
    return bytes;
  };
  Fields fields(part, path);
  fields.ignore({"type", "cache_control", "source", "image_url", "url", "data"});
  check_detail(fields);
  fields.done();
  if (const OrderedJson* source = fields.object("source")) {
    path += ".source";
    Fields inner(*source, path);
    const auto type = inner.word("type", {"base64", "url"});
    if (!type) inner.refuse("type", "\"base64\" or \"url\"");
    inner.ignore({"media_type"});  // the bytes say what they are
    const char* key = *type == "url" ? "url" : "data";
    const OrderedJson* value = inner.find(key);
    if (value == nullptr || !value->is_string()) inner.refuse(key, "a string");
    inner.done();
    path += '.';
    path += key;
    const auto& text = value->get_ref<const std::string&>();
    return *type == "url" ? from_url(text) : decode_base64(text, path);
  }
  for (const char* key : {"image_url", "url", "data"}) {
    const OrderedJson* value = fields.find(key);
    if (value == nullptr) continue;
    path += '.';
    path += key;
    if (value->is_object()) {
      Fields inner(*value, path);
      const OrderedJson* url = inner.find("url");
      if (url == nullptr || !url->is_string()) inner.refuse("url", "a string");
      check_detail(inner);
      inner.ignore({"format"});
      inner.done();
      path += ".url";
      value = url;
    }
    if (!value->is_string()) throw invalid_param(path, "a string", describe_value(*value));
    const auto& text = value->get_ref<const std::string&>();
    return std::string_view(key) == "data" && !has_scheme(text, kData) ? decode_base64(text, path) : from_url(text);
  }
  refuse(path, "expected an image with image_url or source", "invalid_image");
}

ContentPart ImageReader::read(const OrderedJson& part, const std::string& part_path) {
  const ModelConfig& config = service_.model().config();
  if (!config.has_vision) refuse(part_path, "this model takes text only, found an image", "unsupported_content");
  if (images_.size() >= policy_.max_images) {
    refuse(part_path, "expected at most " + std::to_string(policy_.max_images) + " images in a request, found more",
           "too_many_images");
  }
  std::string path = part_path;
  try {
    const std::vector<std::byte> bytes = bytes_of(part, path);
    RequestImage image;
    image.picture = prepare_image(bytes, path, image_rules(config.vision),
                                  {.max_bytes = policy_.max_bytes, .max_pixels = policy_.max_pixels});
    image.digest = service_.engine().hasher().digest(bytes);
    image.lease =
        lease(service_.image_budget(), image.picture.patches.size() * sizeof(bf16), policy_.max_waiting_bytes);
    tokens_ += image.picture.grid.tokens();
    images_.push_back(std::move(image));
  } catch (const Error& error) {
    refuse(path, error);
  }
  const int64_t room = service_.engine().options().max_length;
  if (tokens_ >= room) {
    refuse(part_path,
           "the images up to this one have " + std::to_string(tokens_) +
               " tokens; this model's maximum context length is " + std::to_string(room),
           "context_length_exceeded");
  }
  return {ContentPart::Kind::kImage, std::to_string(images_.size() - 1), {}};
}

void ImageReader::read_all(std::vector<ChatMessage>& messages, size_t inserted) {
  for (size_t i = inserted; i < messages.size(); ++i) {
    const std::string message = "messages[" + std::to_string(i - inserted) + "].content";
    for (size_t k = 0; k < messages[i].content.size(); ++k) {
      ContentPart& part = messages[i].content[k];
      if (part.kind != ContentPart::Kind::kImage) continue;
      const std::string path = message + "[" + std::to_string(k) + "]";
      const JsonTree json(parse_ordered_json(part.text, path, {.max_bytes = part.text.size(), .max_depth = 8}));
      part = read(*json, path);
    }
  }
}

void place_images(const ModelConfig& config, EncodedChat encoded, std::vector<RequestImage>& images, Request& request) {
  if (encoded.images.empty()) {
    request.prompt = std::move(encoded.ids);
    return;
  }
  // Tool results are put into the order of their calls, and their images with them.
  std::vector<PreparedImage> pictures;
  std::vector<ImageDigest> digests;
  for (const EncodedChat::Image& entry : encoded.images) {
    RequestImage& image = images.at(std::stoul(entry.record));
    pictures.push_back(std::move(image.picture));
    digests.push_back(image.digest);
  }
  ImagePrompt prompt = expand_placeholders(config, encoded.ids, pictures);
  for (const TokenType type : prompt.types) request.images.dead.push_back(type == TokenType::kText ? 0 : 1);
  for (size_t i = 0; i < pictures.size(); ++i) {
    request.image_identities.push_back(
        {.start = prompt.starts[i], .count = pictures[i].grid.tokens(), .digest = digests[i]});
  }
  request.prompt = std::move(prompt.tokens);
  request.pictures = std::move(pictures);
}

int64_t count_tokens(const EncodedChat& encoded, const std::vector<RequestImage>& images) {
  auto count = static_cast<int64_t>(encoded.ids.size());
  for (const EncodedChat::Image& entry : encoded.images) {
    count += images.at(std::stoul(entry.record)).picture.grid.tokens() - 1;
  }
  return count;
}

}  // namespace mdi
