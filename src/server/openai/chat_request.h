// The body of POST /v1/chat/completions.
#pragma once

#include "server/openai/sampling_fields.h"

namespace mdi {

struct ChatRequest {
  Generation generation;
  StreamSettings stream;
};

// Throws ApiError that names the member at fault; nothing that would change the answer is passed over in silence.
ChatRequest parse_chat_request(const OrderedJson& body, const Service& service);

// The conversation alone: messages, tools and what decides how they are rendered (also for /tokenize).
void read_conversation(Fields& body, const Service& service, Generation& generation);

}  // namespace mdi
