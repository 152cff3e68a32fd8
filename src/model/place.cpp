#include "model/place.h"

#include <vector>

namespace mdi {

namespace {

constexpr int64_t kAlignment = 256;  // what a tensor map and the widest loads want

int64_t data_bytes(const LinearWeight& w) {
  switch (w.kind) {
    case WeightKind::kE4M3:
      return w.n * w.k;
    case WeightKind::kE2M1:
      return w.n * w.k / 2;
    case WeightKind::kBF16:
      return w.n * w.k * 2;
    case WeightKind::kF32:
      return w.n * w.k * 4;
  }
  return 0;
}

int64_t scale_bytes(const LinearWeight& w) {
  if (w.scale == nullptr) return 0;
  return (w.kind == WeightKind::kE2M1 ? w.n : (w.n + 31) / 32) * ((w.k + 31) / 32);
}

// Goes over all weights in the order in which they are placed. `Put` is put(pointer&, bytes): it takes a tensor; with
// align false it goes right behind the one before.
template <class Put>
struct Walk {
  const ModelConfig& config;
  Put put;

  template <class T>
  void one(const T*& p, int64_t elements, bool align = true) {
    if (p == nullptr) return;
    const void* at = p;
    put(at, elements * static_cast<int64_t>(sizeof(T)), align);
    p = static_cast<const T*>(at);
  }
  void data(LinearWeight& w, bool align = true) {
    if (w.data != nullptr) put(w.data, data_bytes(w), align);
  }
  void scale(LinearWeight& w, bool align = true) { one(w.scale, scale_bytes(w), align); }
  void linear(LinearWeight& w) {
    data(w);
    scale(w);
  }

  void hyper(HcWeights& w) {
    const int64_t hc = config.hc_mult, mixes = (2 + hc) * hc;
    one(w.fn, mixes * hc * config.dim);
    one(w.scale, 3);
    one(w.base, mixes);
  }

  void attention(AttentionWeights& w) {
    for (LinearWeight* l : {&w.wq_a, &w.wq_b, &w.wkv, &w.wo_a, &w.wo_b, &w.compressor_wkv, &w.compressor_wgate,
                            &w.indexer_wk, &w.indexer_wq_b, &w.indexer_weights_proj}) {
      linear(*l);
    }
    one(w.q_norm, config.q_lora_rank);
    one(w.kv_norm, config.head_dim);
    one(w.sink, config.n_heads);
    one(w.compressor_norm, config.head_dim);
    one(w.indexer_k_norm, config.index_head_dim);
  }

  void experts(MoeWeights& w) {
    linear(w.gate);
    one(w.bias, w.gate.n);
    one(w.bias_vl, w.gate.n);
    for (const bool scales : {false, true}) {
      for (LinearWeight ExpertWeights::*which : {&ExpertWeights::w1, &ExpertWeights::w3, &ExpertWeights::w2}) {
        for (ExpertWeights& e : w.experts) {
          const bool first = &e == w.experts.data();
          scales ? scale(e.*which, first) : data(e.*which, first);
        }
      }
    }
    for (LinearWeight* l : {&w.shared.w1, &w.shared.w3, &w.shared.w2}) linear(*l);
  }

  void engram(EngramWeights& w, int64_t rows) {
    one(w.table, rows * config.engram_head_dim);
    one(w.scale, rows * (config.engram_head_dim / 32));
    linear(w.wkv);
    one(w.q_weight, int64_t{config.hc_mult} * config.dim);
    one(w.k_weight, int64_t{config.hc_mult} * config.dim);
  }

  void layer(LayerWeights& w, int64_t engram_rows) {
    one(w.attn_norm, config.dim);
    one(w.ffn_norm, config.dim);
    hyper(w.hc_attn);
    hyper(w.hc_ffn);
    attention(w.attn);
    experts(w.ffn);
    engram(w.engram, engram_rows);
  }

  void all(Weights& w) {
    one(w.embed, int64_t{config.vocab_size} * config.dim);
    one(w.norm, config.dim);
    linear(w.head);
    for (size_t i = 0; i < w.layers.size(); ++i) {
      const int index = config.engram_index(static_cast<int>(i));
      layer(w.layers[i], index < 0 ? 0 : config.engram_num_embeddings[static_cast<size_t>(index)]);
    }
    linear(w.draft.main_proj);
    one(w.draft.main_norm, config.dim);
    for (LayerWeights& stage : w.draft.stages) layer(stage, 0);
    one(w.draft.norm, config.dim);
    one(w.draft.markov_embed, w.draft.markov_head.n * w.draft.markov_head.k);
    linear(w.draft.markov_head);
    linear(w.draft.confidence_proj);
  }

  void vision_block(VisionBlockWeights& w) {
    one(w.norm1, config.vision.dim);
    one(w.norm2, config.vision.dim);
    for (LinearWeight* l : {&w.wqkv, &w.wo, &w.w1, &w.w2}) linear(*l);
    one(w.wqkv_bias, w.wqkv.n);
    one(w.wo_bias, w.wo.n);
  }

  void vision(VisionWeights& w) {
    linear(w.patch_embed);
    one(w.patch_bias, w.patch_embed.n);
    for (VisionBlockWeights& block : w.blocks) vision_block(block);
    one(w.norm, config.vision.dim);
    linear(w.aligner_w1);
    one(w.aligner_b1, w.aligner_w1.n);
    linear(w.aligner_w2);
    one(w.aligner_b2, w.aligner_w2.n);
    for (const bf16** row : {&w.image_start, &w.image_newline, &w.image_end}) one(*row, config.dim);
  }
};

// Of a model without a tower there is nothing to see in its weights.
template <class Put>
void walk(const ModelConfig& config, Weights& weights, VisionWeights& vision, Put put) {
  Walk<Put> walk{config, put};
  walk.all(weights);
  walk.vision(vision);
}

int64_t advance(int64_t at, int64_t bytes, bool align) {
  return (align ? (at + kAlignment - 1) / kAlignment * kAlignment : at) + bytes;
}

}  // namespace

int64_t placed_bytes(const Model& model) {
  Weights weights = model.weights;  // the walk takes them as changeable; these copies stay as they are
  VisionWeights vision = model.vision;
  int64_t end = 0;
  walk(model.config(), weights, vision,
       [&end](const void*&, int64_t bytes, bool align) { end = advance(end, bytes, align); });
  return end;
}

DeviceBuffer place_weights(Context& context, Model& model) {
  return place_weights(context, model, [&context](void* to, const void* from, int64_t bytes) {
    context.ops->copy_in(context, to, from, bytes);
  });
}

DeviceBuffer place_weights(Context& context, Model& model, const PutTensor& put) {
  DeviceBuffer buffer(context, placed_bytes(model));
  int64_t end = 0;
  walk(model.config(), model.weights, model.vision, [&](const void*& p, int64_t bytes, bool align) {
    end = advance(end, bytes, align);
    std::byte* to = buffer.as<std::byte>() + (end - bytes);
    put(to, p, bytes);
    p = to;
  });
  return buffer;
}

}  // namespace mdi
