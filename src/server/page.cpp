#include "server/page.h"

#include <algorithm>
#include <string>

namespace mdi {

namespace {

constexpr std::string_view kBelow = "/page/";

// Nothing from elsewhere, no code but the page's files, no markup made out of text (trusted types), not inside
// another page.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'";

// If-None-Match: "*", or a list of tags; a weak one is as good here (RFC 9110, 13.1.2).
bool names_tag(std::string_view header, std::string_view tag) {
  while (!header.empty()) {
    const size_t comma = std::min(header.find(','), header.size());
    std::string_view one = header.substr(0, comma);
    header.remove_prefix(std::min(comma + 1, header.size()));
    while (!one.empty() && (one.front() == ' ' || one.front() == '\t')) one.remove_prefix(1);
    while (!one.empty() && (one.back() == ' ' || one.back() == '\t')) one.remove_suffix(1);
    if (one.starts_with("W/")) one.remove_prefix(2);
    if (one == tag || one == "*") return true;
  }
  return false;
}

void send_asset(const HttpRequest& request, HttpReply& reply, std::string_view name) {
  const auto assets = page_assets();
  const auto asset = std::find_if(assets.begin(), assets.end(), [&](const PageAsset& a) { return a.name == name; });
  if (asset == assets.end()) {
    return reply.send(404, "text/plain; charset=utf-8", "The page has no file of this name.\n");
  }
  Headers headers = {
      {"etag", std::string(asset->tag)},
      {"cache-control", "no-cache"},
      {"content-security-policy", std::string(kPolicy)},
      {"cross-origin-opener-policy", "same-origin"},
      {"cross-origin-resource-policy", "same-origin"},
      {"referrer-policy", "no-referrer"},
      {"x-content-type-options", "nosniff"},
  };
  const bool same = names_tag(request.header("if-none-match"), asset->tag);
  reply.send(same ? 304 : 200, std::string(asset->type), same ? std::string() : std::string(asset->text),
             std::move(headers));
}

}  // namespace

std::vector<Route> page_routes() {
  std::vector<Route> routes;
  routes.push_back({"GET", "/",
                    [](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
                      send_asset(request, *reply, "index.html");
                    },
                    true});
  routes.push_back({"GET", std::string(kBelow) + "*",
                    [](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
                      send_asset(request, *reply, std::string_view(request.path).substr(kBelow.size()));
                    },
                    true});
  return routes;
}

}  // namespace mdi
