#include "server/openapi.h"

#include <string>

namespace mdi {

void openapi_document(Service& /*service*/, const HttpRequest& /*http*/, HttpReply& reply) {
  reply.send(200, "application/json", std::string(openapi_text()));
}

}  // namespace mdi
