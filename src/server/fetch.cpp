// Through libcurl.
#include "server/fetch.h"

#include <curl/curl.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <mutex>

#include "core/error.h"

namespace mdi {

namespace {

struct Transfer {
  const FetchRules& rules;
  std::vector<std::byte> bytes;
  bool refused_address = false, too_large = false;
};

// The one place where a connection begins: redirects and further addresses of a name come here, too.
curl_socket_t open_socket(void* user, curlsocktype /*purpose*/, curl_sockaddr* address) {
  auto& transfer = *static_cast<Transfer*>(user);
  const sockaddr& target = address->addr;
  const bool allowed = transfer.rules.may_connect ? transfer.rules.may_connect(target) : is_public_address(target);
  if (!allowed) {
    transfer.refused_address = true;
    return CURL_SOCKET_BAD;
  }
  return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

size_t take_bytes(char* data, size_t one, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const size_t size = one * count;
  if (transfer.bytes.size() + size > transfer.rules.max_bytes) {
    transfer.too_large = true;
    return 0;
  }
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  transfer.bytes.insert(transfer.bytes.end(), begin, begin + size);
  return size;
}

long milliseconds(double seconds) { return static_cast<long>(seconds * 1000); }

// curl_easy_perform, but for `stopped`: its own callback for that is only sure to be called once a second.
CURLcode perform(CURL* h, const std::function<bool()>& stopped) {
  constexpr int kLookMs = 100;
  const std::unique_ptr<CURLM, decltype(&curl_multi_cleanup)> multi(curl_multi_init(), curl_multi_cleanup);
  if (multi == nullptr || curl_multi_add_handle(multi.get(), h) != CURLM_OK) return CURLE_OUT_OF_MEMORY;
  CURLcode code = CURLE_OK;
  for (int running = 1; running > 0;) {
    CURLMcode failed = curl_multi_perform(multi.get(), &running);
    if (failed == CURLM_OK && running > 0) failed = curl_multi_poll(multi.get(), nullptr, 0, kLookMs, nullptr);
    const bool stop = stopped && stopped();
    if (failed != CURLM_OK || stop) {
      code = stop ? CURLE_ABORTED_BY_CALLBACK : CURLE_OUT_OF_MEMORY;
      // A name that is being looked up is left to its thread.
      curl_easy_setopt(h, CURLOPT_QUICK_EXIT, 1L);
      break;
    }
  }
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi.get(), &left)) {
    if (message->msg == CURLMSG_DONE && code == CURLE_OK) code = message->data.result;
  }
  curl_multi_remove_handle(multi.get(), h);
  return code;
}

}  // namespace

bool can_fetch() { return true; }

std::vector<std::byte> fetch(const std::string& url, const std::string& where, const FetchRules& rules) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> handle(curl_easy_init(), curl_easy_cleanup);
  if (handle == nullptr) throw Error(where, "the image cannot be fetched: no memory");
  Transfer transfer{.rules = rules, .bytes = {}};
  CURL* h = handle.get();
  const auto set = [&](CURLoption option, auto value) {
    if (curl_easy_setopt(h, option, value) != CURLE_OK) throw Error(where, "the image cannot be fetched: bad option");
  };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  set(CURLOPT_FOLLOWLOCATION, 1L);
  set(CURLOPT_MAXREDIRS, static_cast<long>(rules.max_redirects));
  set(CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
  set(CURLOPT_PROXY, "");  // also none of the environment's: a proxy would connect for us
  set(CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
  set(CURLOPT_OPENSOCKETFUNCTION, open_socket);
  set(CURLOPT_OPENSOCKETDATA, static_cast<void*>(&transfer));
  set(CURLOPT_WRITEFUNCTION, take_bytes);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&transfer));
  set(CURLOPT_FAILONERROR, 1L);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_CONNECTTIMEOUT_MS, milliseconds(rules.connect_seconds));
  set(CURLOPT_TIMEOUT_MS, milliseconds(rules.seconds));
  set(CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(rules.max_bytes));
  set(CURLOPT_USERAGENT, "mini-DeepInfer");

  const CURLcode code = perform(h, rules.stopped);
  if (code == CURLE_OK) return std::move(transfer.bytes);
  std::string why;
  if (transfer.refused_address) {
    why = "the host's address is not a public one";
  } else if (transfer.too_large || code == CURLE_FILESIZE_EXCEEDED) {
    why = "it has more than " + std::to_string(rules.max_bytes) + " bytes";
  } else if (code == CURLE_ABORTED_BY_CALLBACK) {
    why = "the server is ending";
  } else if (code == CURLE_HTTP_RETURNED_ERROR) {
    long status = 0;
    curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &status);
    why = "the host answered with status " + std::to_string(status);
  } else {
    why = curl_easy_strerror(code);
  }
  throw Error(where, "the image cannot be fetched: " + why);
}

}  // namespace mdi
