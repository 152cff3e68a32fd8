// Where a prompt is worth a snapshot.
#pragma once

#include <cstdint>
#include <vector>

namespace mdi {

// A slot's copy is as large as 25 blocks at the released size: at least 32 blocks between the regular ones.
inline constexpr int64_t kSnapshotEveryBlocks = 32;

// Positions in (from, end], ascending: every multiple of `every_blocks` blocks, `branch` (PrefixHit::branch; 0: none)
// and `end`. Prefill chunks end at these, and the state there is published. Multiples count from the sequence's start,
// not from `from`, so that different requests take theirs at the same places. `end` is the prompt's end, or one token
// before it: only the latter serves the very same prompt again, which has to run one token for its logits.
std::vector<int64_t> snapshot_positions(int64_t from, int64_t end, int64_t branch,
                                        int64_t every_blocks = kSnapshotEveryBlocks);

}  // namespace mdi
