// Another backend against the CPU's on the same prompts: how far two right implementations may be apart.
//
// What must hold, over all prompts of a golden folder together: the root mean square of the difference between the
// backends' logits is at most twice that of the oracle from the stored ones; the largest logit is the oracle's in every
// row whose two largest are further apart than four times that difference; and whatever one side alone selects, given
// the oracle's stream, has an oracle score within one bf16 rounding of the threshold. Folders, not prompts: a single
// rounding to either side moves a short prompt by more than the oracle is away from the stored outputs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/golden/prompt.h"

namespace mdi::golden {

// What the prompts of a folder showed so far.
struct FolderDifference {
  double squares = 0, stored_squares = 0;  // of the backends' difference, of the oracle's from the stored logits
  int64_t logits = 0;                      // in both sums
  double all_squares = 0;                  // of the backends' difference, stored logits or not
  int64_t all_logits = 0;
  struct Row {
    double margin = 0;  // between the oracle's two largest logits
    bool same = false;  // the largest is at the same place
    std::string where;  // "prompt0 row 17"
  };
  std::vector<Row> rows;
};

// The CPU backend with the checkpoint as it is mapped.
struct Oracle {
  Context& context;
  const Model& model;
  FolderDifference& folder;
};

// logits: what prompt.context made of the prompt, [rows, vocab], and what its tap saw. Adds to prompt.oracle->folder,
// reports what each side alone selected, and, as information, this prompt's share and the first stage that differs.
// Then decodes behind the prompt on both, whose rows are the folder's too.
void compare_backends(const Prompt& prompt, const PromptPart& tokens, const std::vector<float>& logits,
                      const Recording& run);

// The verdicts over the folder, whose name begins quantities: prefix "tiny-text/".
void report_folder(const FolderDifference& folder, const std::string& prefix, Report& report);

}  // namespace mdi::golden
