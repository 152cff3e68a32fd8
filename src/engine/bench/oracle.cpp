#include "engine/bench/oracle.h"

#ifdef MDI_WITH_CUDA

#include "checkpoint/synth_values.h"
#include "core/error.h"
#include "engine/bench/oracle_parts.h"

namespace mdi::bench {

namespace {

int64_t data_bytes(const LinearWeight& w) {
  return w.kind == WeightKind::kE2M1 ? w.n * w.k / 2
                                     : w.n * w.k *
                                           (w.kind == WeightKind::kE4M3   ? 1
                                            : w.kind == WeightKind::kBF16 ? 2
                                                                          : 4);
}
int64_t scale_count(const LinearWeight& w) {
  if (w.scale == nullptr) return 0;
  return (w.kind == WeightKind::kE2M1 ? w.n : (w.n + 31) / 32) * ((w.k + 31) / 32);
}

}  // namespace

Oracle::Oracle(BenchContext& gpu, const Step& step, int64_t pool_blocks, std::set<int> layers,
               std::set<int> expert_layers)
    : gpu_(gpu),
      step_(step),
      pool_blocks_(pool_blocks),
      layers_(std::move(layers)),
      expert_layers_(std::move(expert_layers)),
      cpu_(make_cpu_context(0)) {
  if (step.sequences() != 1 || step.rows() < kRows || step.seq_start[0] % 2 != 0) {
    throw Error("bench check", "expected one sequence of at least 64 new tokens from an even position on");
  }
  // The first and the last pair of the step, and others between.
  const int32_t pairs = step.rows() / 2;
  std::set<int32_t> chosen = {0, pairs - 1};
  for (uint64_t i = 0; chosen.size() < kPairs; ++i) {
    chosen.insert(static_cast<int32_t>(random_at(17, i) % static_cast<uint64_t>(pairs)));
  }
  for (const int32_t pair : chosen) {
    const auto index = static_cast<int32_t>(seq_slot_.size());
    const int32_t row = 2 * pair;
    seq_slot_.push_back(index);
    seq_start_.push_back(step.position[static_cast<size_t>(row)]);
    seq_row_.push_back(2 * index);
    seq_count_.push_back(2);
    seq_floor_.push_back(0);
    table_.insert(table_.end(), step.block_table.begin(), step.block_table.end());
    for (const int32_t r : {row, row + 1}) {
      sampled_.push_back(r);
      token_.push_back(step.token[static_cast<size_t>(r)]);
      position_.push_back(step.position[static_cast<size_t>(r)]);
      seq_of_row_.push_back(index);
      dead_.push_back(0);
    }
  }
  view_ = {.rows = kRows,
           .sequences = kPairs,
           .token = token_.data(),
           .position = position_.data(),
           .seq_of_row = seq_of_row_.data(),
           .dead = dead_.data(),
           .seq_slot = seq_slot_.data(),
           .seq_start = seq_start_.data(),
           .seq_row = seq_row_.data(),
           .seq_count = seq_count_.data(),
           .seq_floor = seq_floor_.data(),
           .block_table = table_.data(),
           .max_blocks = step.max_blocks};
}

bool Oracle::wanted() const { return gpu_.layer < 0 || layers_.count(gpu_.layer) != 0; }

LinearWeight Oracle::weight(const LinearWeight& w) {
  LinearWeight host = w;
  host.data = keep(static_cast<const std::byte*>(w.data), data_bytes(w));
  host.scale = keep(w.scale, scale_count(w));
  return host;
}

RopeTable Oracle::rope(const RopeTable& table) {
  return {.inv_freq = keep(table.inv_freq, table.rope_dim / 2), .rope_dim = table.rope_dim};
}

// The pool on the host: a copy, or room of the same shape.
SourceCache Oracle::pool(const SourceCache& device, bool whole) {
  SourceCache host = device;
  const int64_t bytes = pool_blocks_ * device.block_bytes;
  kept_.push_back(whole ? std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes))
                        : std::make_unique<std::byte[]>(static_cast<size_t>(bytes)));
  host.blocks = kept_.back().get();
  if (whole) gpu_.backend->copy_out(gpu_, host.blocks, device.blocks, bytes);
  return host;
}

void Oracle::add(Checked checked) { results_.push_back(std::move(checked)); }

void Oracle::finish() { kept_.clear(); }

}  // namespace mdi::bench

#endif
