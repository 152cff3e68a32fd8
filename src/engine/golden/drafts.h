// The draft layers along a stored run: each block drafted from the stored anchor, its chain led along the stored
// proposals, so that one token that comes out otherwise does not change what follows it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/golden/prompt.h"

namespace mdi::golden {

class DraftRun {
 public:
  // `stored` ("dspark." or "greedy.draft_") goes before the names ids, logits, confidence. Nothing is wanted when the
  // file has none of them or the model has no draft layers.
  DraftRun(const Prompt& prompt, std::string ids, std::string logits, std::string confidence);

  bool wanted() const { return block_ > 0; }
  // Drafts stored row `row` behind the sequence's last token. Rows past the stored ones are left out.
  void add(GoldenSequence& sequence, int64_t row);
  void report();

 private:
  const Prompt& prompt_;
  std::string ids_name_, logits_name_, confidence_name_;
  int64_t block_ = 0, rows_ = 0, logit_rows_ = 0;
  std::vector<int32_t> ids_;  // [rows, block + 1], the anchor first
  std::vector<float> logits_, confidence_;
  std::vector<double> gaps_;
};

// The rings of the draft stages as they stand after the prompt.
void check_draft_rings(const Prompt& prompt, const GoldenSequence& sequence);

}  // namespace mdi::golden
