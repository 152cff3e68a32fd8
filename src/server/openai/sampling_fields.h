// The members that /v1/chat/completions and /v1/completions have in common.
#pragma once

#include "server/fields.h"
#include "server/service.h"

namespace mdi {

struct StreamSettings {
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // every chunk says what was used up to it, so that a page counts tokens as they come
};

// What the API calls a name, of a function or a format: 1 to 64 letters, digits, _ or -.
bool is_name(std::string_view name);

// model, n, seed, stop, temperature, top_p, top_k, min_p, the penalties, logit_bias, ignore_eos, cache_salt; what is
// ignored, and what is refused. Without a seed the answer is another one each time.
void read_common(Fields& body, const Service& service, Generation& generation);

// stream, stream_options; continuous_usage_stats only where `chat`.
StreamSettings read_stream(Fields& body, bool chat);

// regex, choice and, in chat, response_format: at most one of them. Returns the JSON Schema that the prompt shows
// (null: none).
const OrderedJson* read_format(Fields& body, bool chat, GrammarSpec& grammar);

}  // namespace mdi
