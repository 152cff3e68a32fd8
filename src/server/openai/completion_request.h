// The body of POST /v1/completions.
#pragma once

#include <string>
#include <vector>

#include "server/openai/sampling_fields.h"

namespace mdi {

struct CompletionRequest {
  // One for each prompt; they differ in their prompts alone.
  std::vector<Generation> generations;
  std::vector<std::string> echoes;  // what each answer begins with; empty: nothing
  StreamSettings stream;
  int32_t n = 1;
  bool logprobs = false;
};

// Throws ApiError that names the member at fault.
CompletionRequest parse_completion_request(const OrderedJson& body, const Service& service);

// A text as a prompt of its own: with the token that begins a sequence in front, which the model was trained with,
// unless add_special is false. Markers spelled in the text are those tokens.
std::vector<int32_t> text_prompt(const Service& service, const std::string& text, bool add_special);

// A list of token ids. Throws ApiError naming the first that the model does not have.
std::vector<int32_t> read_token_ids(const Service& service, const OrderedJson& list, const std::string& path);

}  // namespace mdi
