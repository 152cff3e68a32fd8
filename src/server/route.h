// Which handler answers which path: one table. Each endpoint's file adds its lines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "http/server.h"
#include "server/api_error.h"

namespace mdi {

class Service;

struct Route {
  std::string method;  // "GET" (answers HEAD too) or "POST"
  std::string path;    // "/v1/models", or "/v1/models/*" for everything below
  HttpHandler handler;
  bool open = false;  // needs no key
};

class Router {
 public:
  explicit Router(Service& service) : service_(service) {}

  // Earlier lines win.
  void add(Route route) { routes_.push_back(std::move(route)); }
  void add(std::vector<Route> routes);

  // Null: there is none. `allowed` (may be null) gets the methods that the path has, comma separated.
  const Route* find(std::string_view method, std::string_view path, std::string* allowed = nullptr) const;

  // 404, 405 and OPTIONS (204 with Allow) are answered here, in the shape of the API that the path belongs to.
  void handle(HttpRequest request, std::shared_ptr<HttpReply> reply) const;

 private:
  Service& service_;
  std::vector<Route> routes_;
};

// The same route, handled by one of the service's workers: for what may wait for somebody.
Route by_worker(Service& service, Route route);

// All endpoints. The service outlives the router.
Router make_router(Service& service);

// The shape of errors for a path: Anthropic's below /v1/messages, else OpenAI's.
ErrorShape error_shape_of(std::string_view path);

}  // namespace mdi
