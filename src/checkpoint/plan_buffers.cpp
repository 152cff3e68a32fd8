#include "checkpoint/plan_buffers.h"

#include <algorithm>

#include "checkpoint/inventory.h"

namespace mdi {

namespace {

// Index scores are computed for a tile of queries at a time; this bounds the tile at any context.
constexpr int64_t kScoreTileBytes = int64_t{256} << 20;

constexpr int64_t kBf16 = 2, kF32 = 4, kI32 = 4, kI64 = 8;

// e4m3 codes and an e8m0 scale for each 32 of them.
int64_t fp8_row(int64_t n) { return n + n / 32; }
// e2m1 codes and an e8m0 scale for each 32, or an e4m3 scale for each 16 of them.
int64_t fp4_row(int64_t n, int64_t block) { return n / 2 + n / block; }

int64_t at_least_one(int64_t n) { return std::max<int64_t>(1, n); }

struct Lines {
  std::vector<PlanLine> lines;
  void add(std::string name, int64_t bytes, std::string formula, std::string reason) {
    if (bytes <= 0) return;
    lines.push_back({std::move(name), static_cast<uint64_t>(bytes), std::move(formula), std::move(reason)});
  }
};

}  // namespace

WeightSums sum_weights(const ModelConfig& config) {
  WeightSums w;
  for (const TensorSpec& t : inventory(config)) {
    const auto bytes = static_cast<uint64_t>(t.bytes());
    switch (t.part) {
      case Part::kRoutedExperts:
        w.experts += bytes;
        break;
      case Part::kDraftExperts:
        w.draft_experts += bytes;
        break;
      case Part::kDraftDense:
        w.draft_dense += bytes;
        break;
      case Part::kVision:
        w.vision += bytes;
        break;
      default:
        if (t.name.find("engram.embed") != std::string::npos) {
          w.engram_tables += bytes;
        } else {
          w.dense += bytes;
        }
    }
    if (t.part == Part::kAttention && t.name.ends_with("wo_a.weight")) w.wo_a += static_cast<uint64_t>(t.elements());
  }
  w.engram_row = static_cast<uint64_t>(fp8_row(config.engram_head_dim));
  return w;
}

uint64_t block_bytes(const ModelConfig& c) {
  const int64_t row = fp4_row(c.head_dim, 16) + fp4_row(c.index_head_dim, 32);
  int64_t bytes = 0;
  for (const int layer : c.kv_source_layers) {
    bytes += kPlanBlockTokens / c.compress_ratios[static_cast<size_t>(layer)] * row;
  }
  return static_cast<uint64_t>(bytes);
}

std::vector<PlanLine> slot_lines(const ModelConfig& c, bool drafts) {
  Lines out;
  const int64_t rings = c.n_layers + (drafts ? c.n_mtp_layers : 0);
  out.add("window rings", rings * c.window_size * fp8_row(c.head_dim), "layers * window * (head_dim + head_dim / 32)",
          "the last keys of every layer, in fp8");
  out.add("pending rows", static_cast<int64_t>(c.kv_source_layers.size()) * 2 * c.head_dim * kF32,
          "kv_sources * 2 * head_dim * 4", "the first half of an unfinished pair: value and gate, fp32");
  if (!c.engram_layer_ids.empty()) {
    out.add("engram history", (c.engram_max_ngram_size - 1) * kI32, "(ngram - 1) * 4",
            "the tokens that the hash looks back on");
  }
  return out.lines;
}

std::vector<PlanLine> workspace_lines(const ModelConfig& c, const PlanOptions& o, int64_t sequences) {
  Lines out;
  const int64_t t = o.step_rows, hc = c.hc_mult;
  const bool drafts = o.drafts && c.n_mtp_layers > 0;
  const int64_t heads = int64_t{c.n_heads} * c.head_dim;
  const int64_t groups = int64_t{c.o_groups} * c.o_lora_rank;
  const auto sources = static_cast<int64_t>(c.kv_source_layers.size());

  out.add("residual stream", t * hc * c.dim * kBf16, "rows * hc * dim * 2", "updated in place; one copy");
  out.add("stream mixes", t * (3 * hc + hc * hc) * kF32, "rows * (3 hc + hc^2) * 4",
          "carried mix, both new ones, combination");
  out.add("sublayer input and output", t * (2 * c.dim * kBf16 + fp8_row(c.dim)), "rows * (2 * dim * 2 + dim * 33/32)",
          "the input also in fp8, as the projections and the dispatch read it");
  out.add("queries", t * (c.q_lora_rank * kBf16 + fp8_row(c.q_lora_rank) + heads * kBf16),
          "rows * (q_lora * (2 + 33/32) + heads * head_dim * 2)", "low-rank query and all heads");
  out.add("attention output", t * (heads * kBf16 + groups * kBf16 + fp8_row(groups)),
          "rows * (heads * head_dim * 2 + groups * o_lora * (2 + 33/32))", "before and after the grouped projection");
  out.add("window rows of the step", t * (c.n_layers + (drafts ? c.n_mtp_layers : 0)) * fp8_row(c.head_dim),
          "rows * layers * (head_dim + head_dim / 32)", "kept until commit says how many are accepted");
  out.add("compressor inputs of the step", sources * t * 2 * c.head_dim * kF32, "kv_sources * rows * 2 * head_dim * 4",
          "any new row may become the pending one, depending on what is accepted");

  if (sources > 0) {
    const int64_t context_rows = at_least_one(o.context);
    const int64_t candidates = c.candidate_source_layer >= 0 ? c.candidate_topk_blocks : 0;
    out.add("index queries", t * c.index_n_heads * (fp4_row(c.index_head_dim, 32) + kBf16),
            "rows * index_heads * (index_dim / 2 + index_dim / 32 + 2)", "in fp4, with their weights");
    const int64_t score_row =
        context_rows * kBf16 + (candidates > 0 ? context_rows / at_least_one(c.candidate_block_size) * kBf16 : 0);
    const int64_t queries = std::clamp<int64_t>(kScoreTileBytes / score_row, 1, t);
    out.add("index scores, one tile", queries * score_row,
            "min(rows, 256 MiB / row) * context * 2 * (1 + 1 / candidate_block)",
            "bf16 scores of a tile of queries at ratio 1, and block maxima; bounded at any context");
    out.add("selections", t * (c.index_topk + candidates) * kI32, "rows * (topk + candidate_blocks) * 4",
            "positions that attention reads; candidate blocks of the later index sources");
  }
  if (!c.engram_layer_ids.empty()) {
    const int64_t columns = c.engram_columns();
    const auto tables = static_cast<int64_t>(c.engram_layer_ids.size());
    out.add("engram rows", tables * t * columns * (fp8_row(c.engram_head_dim) + kI64),
            "engram_layers * rows * columns * (head_dim * 33/32 + 8)",
            "fetched for every engram layer before the first layer runs, from wherever the tables are");
    out.add("engram projection", t * ((hc + 1) * c.dim * kBf16 + fp8_row(columns * c.engram_head_dim)),
            "rows * ((hc + 1) * dim * 2 + columns * head_dim * 33/32)", "keys and value; its input in fp8");
  }

  // Routing may send every row of every rank here.
  const int64_t pair_rows = t * o.ep * std::min<int64_t>(c.n_activated_experts, (c.n_routed_experts + o.ep - 1) / o.ep);
  out.add("routing", t * c.n_activated_experts * (kI32 + kF32) + pair_rows * 2 * kI32, "rows * active * 8 + pairs * 8",
          "chosen experts and weights; rows sorted by expert");
  out.add("expert hidden rows", (pair_rows + t) * fp8_row(c.moe_inter_dim), "(pairs + rows) * inter * 33/32",
          "silu(gate) * up in fp8, of the routed and the shared expert; all pairs may be local");
  out.add("expert sums", t * c.dim * kF32, "rows * dim * 4", "fp32, before the one rounding");
  if (o.ep > 1) {
    out.add("dispatch", t * o.ep * (fp8_row(c.dim) + c.n_activated_experts * (kI32 + kF32)),
            "rows * ep * (dim * 33/32 + active * 8)",
            "rows from every rank, should all of them choose experts of this one");
    out.add("combine", 2 * t * o.ep * c.dim * kF32, "2 * rows * ep * dim * 4",
            "fp32 partial sums: those made for other ranks and those received");
  }
  if (drafts) {
    out.add("main hidden",
            t * static_cast<int64_t>(c.dspark_target_layer_ids.size()) * c.dim * kBf16 + t * c.dim * kBf16,
            "rows * (targets + 1) * dim * 2", "what the draft layers are fed with");
  }
  const int64_t samples = std::min(t, sequences * (drafts ? c.dspark_block_size + 1 : 1));
  out.add("logits", samples * c.vocab_size * kF32, "min(rows, sequences * (1 + drafted)) * vocab * 4",
          "a row for each token that is sampled or verified");
  if (drafts) {
    out.add("draft logits", std::min(t, sequences * c.dspark_block_size) * c.vocab_size * kF32,
            "sequences * drafted * vocab * 4", "the distribution that a draft was drawn from is needed to verify it");
  }
  const int64_t table_blocks = (o.context + kPlanBlockTokens - 1) / kPlanBlockTokens;
  out.add("step tables", t * 4 * kI32 + sequences * (table_blocks + 8) * kI32 + int64_t{c.vocab_size} * kI32,
          "rows * 16 + sequences * (blocks + 8) * 4 + vocab * 4", "tokens, positions, block tables, compressed ids");
  if (o.vision && c.has_vision) {
    const VisionConfig& v = c.vision;
    const int64_t patches = int64_t{v.max_n_token} * v.downsample_ratio * v.downsample_ratio;
    out.add("vision tower", patches * (int64_t{5} * v.dim + int64_t{3} * v.inter_dim) * kBf16,
            "max_tokens * downsample^2 * (5 dim + 3 inter) * 2",
            "one image at a time: stream, q, k, v, output, both mlp halves");
  }
  return out.lines;
}

}  // namespace mdi
