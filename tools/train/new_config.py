#!/usr/bin/env python3
"""Writes config.json of the small model and prints what each part takes. Usage: new_config.py OUT_JSON TOKENIZER_JSON

The byte budget, fixed before training: 16 MB for everything in the folder. Two kinds of part have a size that can be chosen
freely, and they share what is left: the routed experts (one copy of a fact costs half a byte a value) and the engram tables.
"""

import collections
import json
import sys

import tokenizers

import config
import model
import tokenizer

LAYERS = {"compress_ratios": [0, 0, 2, 2, 2, 1, 1, 1, 0, 0], "kv_source_layer_ids": [2, 4, 5], "index_source_layer_ids": [2, 4, 5, 7],
          "candidate_source_layer_id": 5, "engram_layer_ids": [1, 4], "dspark_target_layer_ids": [5, 6, 7]}


def text_config(vocab, compressed):
    c = {"model_type": "deepseek_v41_text", "vocab_size": vocab, "hidden_size": 256, "moe_intermediate_size": 64, "num_hidden_layers": 8,
         "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 64, "qk_rope_head_dim": 32, "q_lora_rank": 96, "o_lora_rank": 32,
         "o_groups": 4, "hidden_act": "silu", "swiglu_limit": 10.0, "rms_norm_eps": 1e-20, "attention_bias": False, "attention_dropout": 0.0,
         "initializer_range": 0.02, "use_cache": True, "tie_word_embeddings": False, "max_position_embeddings": 8192, "rope_theta": 10000,
         "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 65536},
         "n_routed_experts": 20, "n_shared_experts": 1, "num_experts_per_tok": 4, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
         "norm_topk_prob": True, "routed_scaling_factor": 1.5, "sliding_window": 128, "compress_rope_theta": 160000, "index_n_heads": 4,
         "index_head_dim": 64, "index_topk": 64, "candidate_topk_blocks": 32, "candidate_block_size": 8, "hc_mult": 4, "hc_sinkhorn_iters": 20,
         "hc_eps": 1e-6, "engram_max_ngram_size": 4, "engram_vocab_size": 3500, "engram_n_heads": 2, "engram_head_dim": 32,
         "engram_pad_token_id": tokenizer.PAD, "engram_compressed_vocab_size": compressed, "num_nextn_predict_layers": 2,
         "dspark_block_size": 5, "dspark_noise_token_id": tokenizer.SYSTEM, "dspark_markov_rank": 32, "dspark_n_routed_experts": 4,
         "dspark_num_experts_per_tok": 2, **LAYERS}
    c["engram_num_embeddings"] = []
    holder = type("C", (), {**c, "columns": (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"]})
    c["engram_num_embeddings"] = [sum(p) for p in config.engram_primes(holder)]
    return c


BYTES = {"fp8": 1 + 1 / 1024, "fp4": 0.5 + 1 / 32, "row_fp8": 1 + 1 / 32, "bf16": 2, "f32": 4}


def budget(c):
    parts = collections.Counter()
    for name, (shape, _) in model.shapes(c).items():
        n = 1
        for v in shape:
            n *= v
        part = ("drafts" if name.startswith("mtp") else "experts" if "experts" in name and "shared" not in name else
                "engram" if "engram" in name else "hyper-connections" if "hc_" in name else
                "embeddings" if name in ("embed", "head") else "attention" if "attn" in name else "other")
        parts[part] += n * BYTES[model.storage(name)]
    return parts


def main():
    out, tokenizer_path = sys.argv[1:]
    t = tokenizers.Tokenizer.from_file(tokenizer_path)
    compressed = max(tokenizer.compressed_ids(t)) + 1
    whole = {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16", "transformers_version": "5.6.0",
             "bos_token_id": tokenizer.BOS, "eos_token_id": tokenizer.EOS, "pad_token_id": tokenizer.PAD, "image_token_id": 10,
             "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32], "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
             "text_config": text_config(t.get_vocab_size(), compressed), "vision_config": None}
    with open(out, "w") as f:
        json.dump(whole, f, indent=1)
        f.write("\n")
    c = config.load(out)
    parts = budget(c)
    for part, size in parts.most_common():
        print(f"{part:18} {size / 1e6:6.2f} MB")
    print(f"{'total':18} {sum(parts.values()) / 1e6:6.2f} MB")


if __name__ == "__main__":
    main()
