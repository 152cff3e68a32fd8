#include "server/route.h"

#include <utility>

#include "server/anthropic/errors.h"
#include "server/anthropic/routes.h"
#include "server/openai/errors.h"
#include "server/openai/routes.h"
#include "server/page.h"
#include "server/service.h"

namespace mdi {

namespace {

bool matches(std::string_view pattern, std::string_view path) {
  if (pattern.ends_with("/*")) {
    pattern.remove_suffix(1);
    return path.size() > pattern.size() && path.starts_with(pattern);
  }
  return path == pattern;
}

}  // namespace

void Router::add(std::vector<Route> routes) {
  for (Route& route : routes) add(std::move(route));
}

const Route* Router::find(std::string_view method, std::string_view path, std::string* allowed) const {
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  const Route* found = nullptr;
  for (const Route& route : routes_) {
    if (!matches(route.path, path)) continue;
    if (route.method == wanted && found == nullptr) found = &route;
    if (allowed == nullptr) continue;
    const std::string add = route.method == "GET" ? "GET, HEAD" : route.method;
    if (allowed->find(add) == std::string::npos) *allowed += (allowed->empty() ? "" : ", ") + add;
  }
  return found;
}

void Router::handle(HttpRequest request, std::shared_ptr<HttpReply> reply) const {
  std::string allowed;
  const Route* route = find(request.method, request.path, &allowed);
  if (route != nullptr) return route->handler(std::move(request), std::move(reply));
  const ErrorShape shape = error_shape_of(request.path);
  if (allowed.empty()) {
    return service_.refuse(
        *reply, {ApiErrorKind::kNotFound, "Unknown path: " + request.method + " " + request.path, {}, "unknown_url"},
        shape);
  }
  allowed += ", OPTIONS";
  if (request.method == "OPTIONS") return reply->send(204, "text/plain; charset=utf-8", "", {{"allow", allowed}});
  const ApiError error(ApiErrorKind::kMethod,
                       request.method + " is not allowed for " + request.path + ", which has " + allowed + ".", {},
                       "method_not_allowed");
  service_.count(error);
  HttpAnswer answer = shape(error);
  answer.headers.emplace_back("allow", allowed);
  reply->send(answer.status, std::move(answer.content_type), std::move(answer.body), std::move(answer.headers));
}

Route by_worker(Service& service, Route route) {
  route.handler = [&service, handler = std::move(route.handler)](HttpRequest request,
                                                                 std::shared_ptr<HttpReply> reply) {
    const ErrorShape shape = error_shape_of(request.path);
    service.on_worker(std::move(request), std::move(reply), shape, handler);
  };
  return route;
}

Router make_router(Service& service) {
  Router router(service);
  router.add(openai_routes(service));
  router.add(anthropic_routes(service));
  router.add(page_routes());
  return router;
}

ErrorShape error_shape_of(std::string_view path) {
  const bool anthropic = path == "/v1/messages" || path.starts_with("/v1/messages/");
  return anthropic ? anthropic_error : openai_error;
}

}  // namespace mdi
