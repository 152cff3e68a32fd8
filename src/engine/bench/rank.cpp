#include "engine/bench/rank.h"

#include <algorithm>

#include "checkpoint/byte_size.h"
#include "checkpoint/inventory.h"
#include "checkpoint/synth_presets.h"
#include "checkpoint/synth_values.h"
#include "core/error.h"
#include "engine/load_cuda.h"

namespace mdi::bench {

ModelConfig rank_config() {
  ModelConfig config = synth_preset("released");
  ShapeOverrides overrides;
  overrides.draft_layers = 0;
  overrides.no_vision = true;
  apply_overrides(config, overrides);
  config.image_token_id = -1;
  config.dspark_target_layer_ids.clear();
  return config;
}

namespace {

// Scratch of the largest operation: 32,768 rows of the experts, in and inside.
constexpr int64_t kWorkspaceBytes = int64_t{2} << 30;

PlanOptions plan_options(const RankOptions& options) {
  PlanOptions o;
  o.ep = o.dp = kRanks;
  o.sequences = options.sequences * kRanks;
  o.context = options.context;
  o.step_rows = options.rows;
  o.engram = Placement::kDevice;
  o.reserve += static_cast<uint64_t>(kWorkspaceBytes);
  return o;
}

}  // namespace

std::string plan_summary(const ModelConfig& config, const RankOptions& options) {
  const MemoryPlan plan = plan_memory(config, plan_options(options));
  return "one rank takes " + size_text(plan.total) + " of its memory: weights " + size_text(plan.weight_bytes) +
         ", sequences " + size_text(plan.state_bytes) + ", workspaces " + size_text(plan.workspace_bytes) +
         ", reserve " + size_text(plan.options.reserve) + "; nothing has been made";
}

EngramPlacement place_engram(const ModelConfig& config, const RankOptions& options, uint64_t free,
                             const std::string& device, MemoryPlan& plan) {
  PlanOptions o = plan_options(options);
  o.device_memory = free;
  plan = plan_memory(config, o);
  const auto row_bytes = static_cast<uint64_t>(config.engram_head_dim + config.engram_head_dim / 32);
  std::vector<int64_t> share;
  for (const int64_t rows : config.engram_num_embeddings) share.push_back((rows + kRanks - 1) / kRanks);
  EngramPlacement engram;
  engram.rows = share;
  if (!plan.fits) {
    o.engram = Placement::kFile;
    plan = plan_memory(config, o);
    if (!plan.fits) throw Error(device, plan_text(plan, free));
    // Some rows of each table, so that the look-ups have somewhere to go.
    for (int64_t& rows : engram.rows) {
      rows = std::min(rows, static_cast<int64_t>(plan.rest / row_bytes / share.size()));
      if (rows < config.engram_columns()) throw Error(device, plan_text(plan, free) + "\n  no room for engram rows");
    }
  }
  for (size_t i = 0; i < share.size(); ++i) {
    engram.device += static_cast<uint64_t>(engram.rows[i]) * row_bytes;
    engram.absent += static_cast<uint64_t>(share[i] - engram.rows[i]) * row_bytes;
  }
  return engram;
}

}  // namespace mdi::bench

#ifdef MDI_WITH_CUDA

#include <chrono>
#include <numeric>

#include "kernels/cuda/fill.h"
#include "model/place.h"

namespace mdi::bench {

namespace {

void fill_tensor(CudaContext& context, const ModelConfig& config, const TensorSpec& spec, void* to, int64_t bytes) {
  const TensorFill fill = plan_fill(config, spec, {});
  const cuda::FillRegion region{.base = to, .row_bytes = bytes};
  switch (fill.kind) {
    case TensorFill::Kind::kReal:
      (spec.dtype == DType::kF32 ? cuda::fill_f32 : cuda::fill_bf16)(context, region, fill.mean, fill.spread, fill.key);
      return;
    case TensorFill::Kind::kE4M3:
      return cuda::fill_e4m3(context, region, fill.key);
    case TensorFill::Kind::kE2M1:
      return cuda::fill_e2m1(context, region, fill.key);
    case TensorFill::Kind::kScales:
      return cuda::fill_scales(context, region, fill.exponent, fill.next_exponent, fill.key);
  }
}

// The rank's model: tensors are known by the address of their entry in `handles` until they are placed and filled.
void make_weights(Rank& rank, const ModelConfig& config) {
  std::vector<uint64_t> handles;
  ModelConfig own = config;
  own.engram_num_embeddings = rank.engram.rows;
  const std::vector<TensorSpec> specs = inventory(own);
  handles.resize(specs.size());
  size_t next = 0;
  std::vector<int32_t> token_map(static_cast<size_t>(config.vocab_size));
  for (size_t i = 0; i < token_map.size(); ++i) {
    token_map[i] = static_cast<int32_t>(random_at(3, i) % static_cast<uint64_t>(config.engram_compressed_vocab_size));
  }
  rank.model = std::make_unique<Model>(load_model(
      Checkpoint::in_memory(own, "synthetic rank", [&](const TensorSpec&) { return &handles[next++]; }), token_map));
  for (LayerWeights& layer : rank.model->weights.layers) {
    layer.ffn.experts.resize(static_cast<size_t>(config.n_routed_experts / kRanks));
  }
  // Look-ups stay inside the rows that are here: the columns share them equally.
  for (size_t i = 0; i < rank.model->engram.size(); ++i) {
    EngramHash& hash = rank.model->engram[i];
    const int64_t each = rank.engram.rows[i] / static_cast<int64_t>(hash.primes.size());
    for (size_t column = 0; column < hash.primes.size(); ++column) {
      hash.primes[column] = each;
      hash.offsets[column] = each * static_cast<int64_t>(column);
    }
  }
  rank.weights = place_weights(*rank.context, *rank.model, [&](void* to, const void* from, int64_t bytes) {
    const auto index = static_cast<size_t>(static_cast<const uint64_t*>(from) - handles.data());
    fill_tensor(*rank.context, config, specs[index], to, bytes);
  });
}

// Choices of the experts, and rows that stand for the other ranks'.
void make_exchange(Rank& rank) {
  const ModelConfig& c = rank.config();
  BenchContext& context = *rank.context;
  const int32_t topk = c.n_activated_experts, local = c.n_routed_experts / kRanks;
  const int64_t rows = rank.options.rows * kRanks;
  std::vector<int32_t> index;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    const auto chosen = make_routing(rank.options.routing, rows, topk, c.n_routed_experts,
                                     rank.options.seed + static_cast<uint64_t>(layer) * 1000);
    rank.expert_load.push_back(expert_load(chosen, 0, local));
    index.insert(index.end(), chosen.begin(), chosen.end());
  }
  const std::vector<float> weight(static_cast<size_t>(rows * topk), c.route_scale / static_cast<float>(topk));
  rank.route_index = DeviceBuffer(context, static_cast<int64_t>(index.size() * sizeof(int32_t)));
  rank.route_weight = DeviceBuffer(context, static_cast<int64_t>(weight.size() * sizeof(float)));
  rank.gathered = DeviceBuffer(context, rows * c.dim * static_cast<int64_t>(sizeof(bf16)));
  rank.partial = DeviceBuffer(context, rows * c.dim * static_cast<int64_t>(sizeof(float)));
  context.ops->copy_in(context, rank.route_index.as<int32_t>(), index.data(),
                       static_cast<int64_t>(index.size() * sizeof(int32_t)));
  context.ops->copy_in(context, rank.route_weight.as<float>(), weight.data(),
                       static_cast<int64_t>(weight.size() * sizeof(float)));
  cuda::fill_bf16(context, {.base = rank.gathered.as<bf16>(), .row_bytes = rows * c.dim * 2}, 0, 1, 5);
  context.load = {.ranks = kRanks,
                  .first = 0,
                  .count = local,
                  .rows = rows,
                  .index = rank.route_index.as<int32_t>(),
                  .weight = rank.route_weight.as<float>(),
                  .gathered = rank.gathered.as<bf16>(),
                  .partial = rank.partial.as<float>()};
}

// Rows of about unit size in every plane of the caches, as the network leaves them.
void fill_state(Rank& rank) {
  BenchContext& context = *rank.context;
  StatePools& state = rank.state;
  const ModelConfig& c = rank.config();
  uint64_t key = 100;
  const auto plane = [&](int64_t offset, int64_t bytes) {
    return cuda::FillRegion{.base = state.blocks.as<std::byte>() + offset,
                            .row_bytes = bytes,
                            .rows = state.blocks_count,
                            .stride = state.cache.block_bytes};
  };
  for (const SourceLayout& s : state.cache.sources) {
    cuda::fill_e2m1(context, plane(s.key_codes, s.rows * s.key_code_bytes()), ++key);
    cuda::fill_scales(context, plane(s.key_scales, int64_t{s.rows} * s.key_dim / 32), -1, 0, ++key);
    cuda::fill_e2m1(context, plane(s.kv_codes, s.rows * s.kv_code_bytes()), ++key);
    cuda::fill_bytes(context, plane(s.kv_scales, int64_t{s.rows} * s.head_dim / 16), 0x2C, 8, ++key);  // 0.4 to 0.7
  }
  const int64_t rows = state.slots * state.layers * state.window, row_bytes = state.window_row.bytes();
  auto* rings = state.rings.as<std::byte>();
  cuda::fill_e4m3(context, {.base = rings, .row_bytes = c.head_dim, .rows = rows, .stride = row_bytes}, ++key);
  cuda::fill_scales(context,
                    {.base = rings + c.head_dim, .row_bytes = c.head_dim / 32, .rows = rows, .stride = row_bytes}, -7,
                    0, ++key);
  const int64_t pending = state.slots * state.pending_stride() * static_cast<int64_t>(sizeof(float));
  cuda::fill_f32(context, {.base = state.pending.as<float>(), .row_bytes = pending}, 0, 1, ++key);
  std::vector<int32_t> history(static_cast<size_t>(state.slots * state.history_depth));
  for (size_t i = 0; i < history.size(); ++i) {
    history[i] = static_cast<int32_t>(random_at(7, i) % static_cast<uint64_t>(c.engram_compressed_vocab_size));
  }
  context.ops->copy_in(context, state.history.as<int32_t>(), history.data(),
                       static_cast<int64_t>(history.size() * sizeof(int32_t)));
}

}  // namespace

namespace {

// find_cuda_device's error with the plan behind it.
CudaDevice find_device(const ModelConfig& config, const RankOptions& options) {
  try {
    return find_cuda_device(0);
  } catch (const Error& e) {
    throw Error(e.what(), plan_summary(config, options));
  }
}

}  // namespace

Rank make_rank(const RankOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const ModelConfig config = rank_config();
  Rank rank;
  rank.options = options;
  const CudaDevice device = find_device(config, options);
  rank.device = device.name;
  rank.device_total = static_cast<uint64_t>(device.total);
  rank.device_free = static_cast<uint64_t>(device.free);
  rank.engram = place_engram(config, options, rank.device_free, device.name, rank.plan);
  rank.context = std::make_unique<BenchContext>(0, kWorkspaceBytes);
  make_weights(rank, config);
  make_exchange(rank);
  const int64_t blocks = rank.blocks_each() * options.sequences;
  rank.state = make_state(*rank.context, *rank.model, options.sequences, blocks);
  fill_state(rank);
  rank.buffers = std::make_unique<StepBuffers>(
      *rank.context, *rank.model, static_cast<int32_t>(options.rows), static_cast<int32_t>(options.sequences),
      static_cast<int32_t>(options.sequences), static_cast<int32_t>(rank.blocks_each()));
  // Blocks lie anywhere, as in a pool that has been used for a while.
  rank.blocks.resize(static_cast<size_t>(blocks));
  std::iota(rank.blocks.begin(), rank.blocks.end(), 0);
  for (size_t i = rank.blocks.size() - 1; i > 0; --i) std::swap(rank.blocks[i], rank.blocks[random_at(9, i) % (i + 1)]);
  for (int64_t i = 0; i < options.rows; ++i) {
    rank.tokens.push_back(
        static_cast<int32_t>(random_at(11, static_cast<uint64_t>(i)) % static_cast<uint64_t>(config.vocab_size)));
  }
  MDI_CUDA(cudaStreamSynchronize(rank.context->stream));
  rank.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return rank;
}

Step rank_step(const Rank& rank, int64_t kept, ReplayForm form) {
  const auto each = rank.options.rows / rank.options.sequences;
  const auto start = static_cast<int32_t>(rank.options.context - each);
  const auto last = static_cast<int32_t>(each - 1);
  std::vector<StepSequence> sequences;
  for (int64_t s = 0; s < rank.options.sequences; ++s) {
    sequences.push_back(
        {.slot = static_cast<int32_t>(s),
         .start = start,
         .tokens = std::span(rank.tokens).subspan(static_cast<size_t>(s * each), static_cast<size_t>(each)),
         .dead = {},
         .blocks = std::span(rank.blocks)
                       .subspan(static_cast<size_t>(s * rank.blocks_each()), static_cast<size_t>(rank.blocks_each())),
         .sample_tokens = {&last, 1},
         .replay_from = kept < each ? static_cast<int32_t>(rank.options.context - kept) : 0});
  }
  return make_step(*rank.model, rank.state, sequences, form);
}

}  // namespace mdi::bench

#endif
