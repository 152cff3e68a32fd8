#include "http/server.h"

#include <utility>

#include "http/transport.h"

namespace mdi {

HttpServer::HttpServer(HttpOptions options, HttpHandler handler)
    : transport_(std::make_shared<Transport>(std::move(options), std::move(handler))) {}

HttpServer::~HttpServer() { stop(); }

void HttpServer::listen() { transport_->listen(); }
void HttpServer::start() { transport_->start(); }
uint16_t HttpServer::port() const { return transport_->port(); }
std::string HttpServer::address() const { return transport_->address(); }
int64_t HttpServer::drain(double seconds) { return transport_->drain(seconds); }
void HttpServer::stop() { transport_->stop(); }

HttpCounters HttpServer::counters() const {
  const AtomicCounters& c = transport_->counters;
  HttpCounters out;
  out.connections = c.connections;
  out.answering = c.answering;
  out.bodies_bytes = c.bodies_bytes;
  out.backlog_bytes = c.backlog_bytes;
  out.accepted = c.accepted;
  out.refused_full = c.refused_full;
  out.requests = c.requests;
  out.malformed = c.malformed;
  out.refused_admit = c.refused_admit;
  for (size_t i = 0; i < c.answered.size(); ++i) out.answered[i] = c.answered[i];
  out.gone_hangup = c.gone_hangup;
  out.gone_backlog = c.gone_backlog;
  out.gone_timeout = c.gone_timeout;
  out.gone_stopped = c.gone_stopped;
  out.abandoned = c.abandoned;
  out.timeouts = c.timeouts;
  out.received_bytes = c.received_bytes;
  out.sent_bytes = c.sent_bytes;
  return out;
}

}  // namespace mdi
