// GET /health: whether the process can still serve (restart it if not). GET /ready: whether to send it requests now.
#pragma once

#include "http/server.h"

namespace mdi {

class Service;

// 200, or 503 after a failure of the engine and while a step hangs.
void health(Service& service, const HttpRequest& http, HttpReply& reply);
// 200, or 503 while /health is, and from the beginning of a drain on.
void ready(Service& service, const HttpRequest& http, HttpReply& reply);

}  // namespace mdi
