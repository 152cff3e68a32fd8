// The body of POST /v1/messages and of POST /v1/messages/count_tokens.
#pragma once

#include "server/anthropic/signature.h"
#include "server/service.h"

namespace mdi {

struct MessagesRequest {
  Generation generation;
  bool stream = false;
  int edited_thinking = 0;  // blocks.h
};

// How thorough the reasoning is, 1 to 100 (spec chat-format.md 3), for a budget of tokens: 25 for 1,024 and 25 more for
// each factor of four, so 4,096 is the format's low, 16,384 its high, and 65,536 and more its max. The budget itself is
// no limit: max_tokens is.
int effort_of_budget(int64_t tokens);

// Both throw ApiError with the path of what is at fault. Members that are not known are errors; cache_control is taken
// and does nothing, because all prefixes are cached.
MessagesRequest parse_messages_request(const OrderedJson& json, const Service& service, const ThinkingSigner& signer);
// What of it makes the prompt.
MessagesRequest parse_count_request(const OrderedJson& json, const Service& service, const ThinkingSigner& signer);

}  // namespace mdi
