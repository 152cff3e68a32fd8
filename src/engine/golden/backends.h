// Another backend against the CPU's on the same prompt: how far two right implementations may be apart.
#pragma once

#include <vector>

#include "engine/golden/prompt.h"

namespace mdi::golden {

// The CPU backend with the checkpoint as it is mapped.
struct Oracle {
  Context& context;
  const Model& model;
};

// logits: what prompt.context made of the prompt, [rows, vocab]. Two quantities: the root mean square of the difference
// from the oracle's logits, at most twice that of the oracle from the stored ones; and the largest logit's place, which
// must be the oracle's in every row whose two largest are further apart than four times that difference.
void compare_backends(const Prompt& prompt, const PromptPart& tokens, const std::vector<float>& logits);

}  // namespace mdi::golden
