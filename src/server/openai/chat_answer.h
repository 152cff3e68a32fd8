// Parts of an answer to what POST /v1/chat/completions sends: one object, or a stream of chunks.
#pragma once

#include <memory>

#include "server/openai/chat_request.h"
#include "server/openai/parts_json.h"
#include "server/service.h"

namespace mdi {

// For Service::generate. The answer is sent to `reply` when it is whole, with an HTTP error where it failed; streamed,
// the first part begins the stream, so that what fails before is an HTTP error, and what fails later an error event
// behind which the stream ends.
AnswerCallback chat_answer(Service& service, std::shared_ptr<HttpReply> reply, const ChatRequest& request);

}  // namespace mdi
