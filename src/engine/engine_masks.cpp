// What the grammars of a step's sequences allow.
#include <algorithm>
#include <exception>

#include "engine/engine_core.h"
#include "engine/slow_masks.h"

namespace mdi {

bool EngineCore::mask_is_slow(const Sequence& s) {
  const Request& r = s.request();
  return s.slow_mask != nullptr || (r.allowed && r.slow_masks && r.slow_masks());
}

void EngineCore::ask_slow_mask(Sequence& s) {
  const std::span<const int32_t> generated = s.generated();
  if (s.slow_mask && s.slow_mask->generated.size() == generated.size()) return;
  s.slow_mask = slow_masks_->ask(s.owner, generated);
}

// Masks are functions of known tokens: they are made while the step runs, those of different requests at once. What a
// proposal was drawn under is there already.
void EngineCore::ask_grammars(Flight& flight) {
  std::vector<std::vector<Part*>> requests;  // the samples of one request share a function
  for (Part& part : flight.parts) {
    Sequence& s = *part.sequence;
    if (!part.sampled() || part.on_device || s.ended || !s.request().allowed) continue;
    // More rows than one are not run again for a mask.
    if (part.tokens == 1 && part.masks.empty() && mask_is_slow(s)) {
      ask_slow_mask(s);
      part.waits = true;
      continue;
    }
    s.slow_mask.reset();
    const auto same = [&](const auto& parts) { return parts.front()->sequence->owner == s.owner; };
    const auto at = std::find_if(requests.begin(), requests.end(), same);
    (at == requests.end() ? requests.emplace_back() : *at).push_back(&part);
  }
  side_by_side(requests.size(), [&](int64_t i) {
    for (Part* part : requests[static_cast<size_t>(i)]) {
      const Sequence& s = *part->sequence;
      add_masks(s.request().allowed, s.generated(), part->proposals, model_.config().vocab_size, part->masks);
    }
  });
}

// The slow ones that are there by now. Nobody but those that wait for one is held up: a part without its mask goes on
// waiting, which costs a row.
void EngineCore::take_slow_masks(Flight& flight) {
  constexpr double kSeconds = 0.05;  // after which it is seen who has arrived or gone
  std::vector<std::shared_ptr<SlowMask>> awaited;
  bool others = false;
  for (const Part& part : flight.parts) {
    if (part.waits) {
      awaited.push_back(part.sequence->slow_mask);
    } else {
      others = true;
    }
  }
  if (awaited.empty()) return;
  if (!others) slow_masks_->wait(awaited, kSeconds);
  for (Part& part : flight.parts) {
    if (!part.waits || !slow_masks_->done(*part.sequence->slow_mask)) continue;
    part.masks.push_back(std::move(part.sequence->slow_mask->mask));
    part.sequence->slow_mask.reset();
    part.waits = false;
  }
}

}  // namespace mdi
