// Parts of an answer to what POST /v1/messages sends: one message, or Anthropic's sequence of events.
#pragma once

#include <memory>
#include <string>

#include "server/anthropic/messages_request.h"
#include "server/service.h"

namespace mdi {

// For Service::generate. Streamed: message_start with the first part, so that what fails before is an HTTP error and
// what fails later an error event behind which the stream ends; then ping, content blocks one after the other
// (thinking, text, tool_use), message_delta, message_stop. `signer` outlives the answer.
AnswerCallback messages_answer(Service& service, const ThinkingSigner& signer, std::shared_ptr<HttpReply> reply,
                               const MessagesRequest& request);

// input_tokens are those that were not found in the prefix cache; cache_read_input_tokens the others.
OrderedJson anthropic_usage(const AnswerUsage& usage);

// The headers of every answer: a request-id; how many thinking blocks of the request were not this server's.
Headers messages_headers(const MessagesRequest& request);

}  // namespace mdi
