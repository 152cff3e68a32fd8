#include "server/health.h"

#include "server/service.h"
#include "server/wire.h"

namespace mdi {

namespace {

// Empty: all is well.
std::string trouble(const Service& service) {
  const std::string failure = service.failure();
  if (!failure.empty()) return "the engine has failed: " + failure;
  const EngineOptions& options = service.engine().options();
  const EngineMetrics metrics = service.engine().metrics();
  const double idle = options.clock() - metrics.step_started;
  // Requests run, so steps follow one another; a request's watchdog looks at it between steps only.
  if (options.stall_limit > 0 && metrics.running > 0 && idle > 2 * options.stall_limit) {
    return "no step has ended for " + std::to_string(static_cast<int64_t>(idle)) + " seconds";
  }
  return {};
}

void answer(HttpReply& reply, const char* good, const char* bad, const std::string& why) {
  OrderedJson out;
  out["status"] = why.empty() ? good : bad;
  if (!why.empty()) out["reason"] = why;
  send_json(reply, why.empty() ? 200 : 503, out);
}

}  // namespace

void health(Service& service, const HttpRequest& /*http*/, HttpReply& reply) {
  answer(reply, "ok", "failed", trouble(service));
}

void ready(Service& service, const HttpRequest& /*http*/, HttpReply& reply) {
  std::string why = trouble(service);
  if (why.empty() && service.draining()) why = "the server is shutting down";
  answer(reply, "ready", "not ready", why);
}

}  // namespace mdi
