#include "engine/golden/drafts.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace mdi::golden {

DraftRun::DraftRun(const Prompt& prompt, std::string ids, std::string logits, std::string confidence)
    : prompt_(prompt),
      ids_name_(std::move(ids)),
      logits_name_(std::move(logits)),
      confidence_name_(std::move(confidence)) {
  if (prompt.model.draft_stages() == 0 || !prompt.file.has(ids_name_)) return;
  const int64_t block = prompt.model.config().dspark_block_size;
  const TensorView t = prompt.file.get(ids_name_, DType::kI32, {kAnySize, block + 1});
  ids_.assign(t.as<int32_t>(), t.as<int32_t>() + t.elements());
  rows_ = t.shape[0];
  if (!logits_name_.empty() && prompt.file.has(logits_name_)) {
    logit_rows_ =
        prompt.file.get(logits_name_, DType::kF32, {kAnySize, block, prompt.model.config().vocab_size}).shape[0];
  }
  block_ = block;
}

void DraftRun::add(GoldenSequence& sequence, int64_t row) {
  if (row >= rows_) return;
  const int64_t vocab = prompt_.model.config().vocab_size;
  const int32_t* ids = ids_.data() + row * (block_ + 1);
  const GoldenSequence::DraftBlock drafted = sequence.draft(ids[0], {ids + 1, static_cast<size_t>(block_)});
  for (int64_t i = 0; i < block_; ++i)
    gaps_.push_back(behind(&drafted.logits[static_cast<size_t>(i * vocab)], vocab, ids[i + 1]));
  if (row < logit_rows_) logits_.insert(logits_.end(), drafted.logits.begin(), drafted.logits.end());
  confidence_.insert(confidence_.end(), drafted.confidence.begin(), drafted.confidence.end());
}

void DraftRun::report() {
  report_tokens(prompt_, ids_name_, gaps_, kDraftMargin);
  const auto compare_rows = [&](const std::string& name, const std::vector<float>& found, Kind kind, int64_t row) {
    if (name.empty() || !prompt_.file.has(name)) return;
    prompt_.report.add(compare(prompt_.prefix + name, view(found), prompt_.file.get(name),
                               whole_model(kind, name, std::nullopt, static_cast<int64_t>(found.size()) / row), row));
  };
  const int64_t vocab = prompt_.model.config().vocab_size;
  compare_rows(logits_name_, logits_, Kind::kLogits, vocab);
  compare_rows(confidence_name_, confidence_, Kind::kConfidence, block_);
}

void check_draft_rings(const Prompt& prompt, const GoldenSequence& sequence) {
  const Recording none;
  const Phase phase{.stored = "dspark.prefill.",
                    .shown = "dspark.prefill.",
                    .run = none,
                    .first_position = 0,
                    .rows = sequence.length(),
                    .offset = 0,
                    .fed = {}};
  for (int s = 0; s < prompt.model.draft_stages(); ++s) {
    check_ring(prompt, phase, "stage" + std::to_string(s) + ".window_kv", sequence, prompt.model.config().n_layers + s);
  }
}

}  // namespace mdi::golden
