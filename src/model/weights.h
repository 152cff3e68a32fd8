// The network's weights as views: where each tensor of the checkpoint lies, in the shape that the operations take.
//
// On the CPU a view points into the mapped file, which the checkpoint owns.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "kernels/ops.h"

namespace mdi {

struct AttentionWeights {
  LinearWeight wq_a, wq_b, wkv, wo_a, wo_b;
  const bf16* q_norm = nullptr;
  const bf16* kv_norm = nullptr;
  const float* sink = nullptr;
  // KV-source layers only
  LinearWeight compressor_wkv, compressor_wgate;  // wgate: ratio 2 only
  const bf16* compressor_norm = nullptr;
  LinearWeight indexer_wk;
  const bf16* indexer_k_norm = nullptr;
  // index-source layers only
  LinearWeight indexer_wq_b, indexer_weights_proj;
};

struct EngramWeights {
  const e4m3* table = nullptr;  // [rows, head_dim]
  const e8m0* scale = nullptr;  // [rows, head_dim / 32]
  LinearWeight wkv;
  const bf16* q_weight = nullptr;  // [hc, dim]
  const bf16* k_weight = nullptr;
};

struct MoeWeights {
  LinearWeight gate;
  const float* bias = nullptr;
  const float* bias_vl = nullptr;  // null in a text-only model
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;
};

struct LayerWeights {
  const bf16* attn_norm = nullptr;
  const bf16* ffn_norm = nullptr;
  HcWeights hc_attn, hc_ffn;
  AttentionWeights attn;
  MoeWeights ffn;
  EngramWeights engram;  // engram layers only
};

// The draft layers (spec dspark.md); without any, `stages` is empty.
struct DraftWeights {
  LinearWeight main_proj;  // [dim, targets * dim]
  const bf16* main_norm = nullptr;
  std::vector<LayerWeights> stages;
  const bf16* norm = nullptr;
  const bf16* markov_embed = nullptr;  // [vocab, rank]
  LinearWeight markov_head;            // [vocab, rank], fp32 out
  LinearWeight confidence_proj;        // [1, dim + rank], fp32 out
};

struct Weights {
  const bf16* embed = nullptr;  // [vocab, dim]
  const bf16* norm = nullptr;
  LinearWeight head;  // [vocab, dim], fp32 out
  std::vector<LayerWeights> layers;
  DraftWeights draft;
};

// Takes every tensor of the text network and of the draft layers; the caller says what else it takes or ignores, then
// calls finish().
Weights take_weights(Checkpoint& checkpoint);

}  // namespace mdi
