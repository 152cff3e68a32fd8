// Drafting inside a step: whether, for whom, and how many proposals are verified.
#include <algorithm>

#include "engine/engine_core.h"

namespace mdi {

void EngineCore::decide_drafting(std::span<const SequenceView> views) {
  StepLoad rest;
  int32_t decoding = 0;
  bool wanted = false;
  for (const SequenceView& view : views) {
    if (!view.running || view.known - view.committed != 1) continue;
    rest += load_of(view.committed, 1, 1);
    ++decoding;
    wanted = wanted || view.drafts > 0;
  }
  drafting_ = drafts_off_ = false;
  threshold_ = 0;
  if (!wanted) return;
  const DraftCosts costs{.step = step_cost_, .draft = draft_cost_};
  const int32_t block = model_.config().dspark_block_size;
  drafting_ = options_.draft_always || drafting_pays(drafts_, costs, rest, decoding, block);
  drafts_off_ = !drafting_;
  if (!options_.draft_always) threshold_ = survival_threshold(drafts_, costs, rest, decoding, block);
}

void EngineCore::limit_drafts(std::span<SequenceView> views) const {
  int32_t left = drafting_ ? runner_.max_drafting() : 0;
  for (SequenceView& view : views) {
    if (view.drafts == 0) continue;
    if (left == 0) {
      view.drafts = 0;
    } else {
      --left;
    }
  }
}

void EngineCore::propose() {
  std::vector<Part*> drafting;
  std::vector<DraftSequence> sequences;
  for (Part& part : parts_) {
    if (part.drafts == 0) continue;
    const Sequence& s = *part.sequence;
    drafting.push_back(&part);
    sequences.push_back({.slot = s.slot.id(),
                         .length = s.committed,
                         .anchor = s.tokens.back(),
                         .replay_from = replay_from_at(s, s.committed)});
  }
  if (drafting.empty()) return;
  note_step(drafts_, true);
  const double start = now();
  const Drafts drafts = runner_.propose(sequences, [&](size_t i, int, std::span<const float> row) {
    Part& part = *drafting[i];
    const Sequence& s = *part.sequence;
    SamplingSequence sampling = sampling_of(*part.sequence);
    if (s.request().allowed) {
      add_masks(s.request().allowed, s.generated(), part.proposals, model_.config().vocab_size, part.masks);
      sampling.masks = part.masks;
    }
    part.proposals.push_back(choose_proposal(row, part.proposals, sampling, scratch_));
    return part.proposals.back().token;
  });
  const auto rows = static_cast<double>(sequences.size()) * model_.config().dspark_block_size;
  observe(draft_cost_, {.rows = rows, .context = 0, .samples = 0}, now() - start);
  ++metrics_.draft_calls;
  for (size_t i = 0; i < drafting.size(); ++i) {
    Part& part = *drafting[i];
    part.proposals.resize(static_cast<size_t>(verify_length(drafts.confidence[i], part.drafts, threshold_)));
    part.masks.resize(std::min(part.masks.size(), part.proposals.size() + 1));
  }
}

}  // namespace mdi
