"""config.json as the training code sees it, and the small tables that follow from it (spec model.md 1, 6.1, 6.2, engram.md)."""

import json
import math
import pathlib
from types import SimpleNamespace

import numpy as np


def load(path):
    """A namespace with the HF key names of text_config; `raw` is the whole file."""
    raw = json.loads(pathlib.Path(path).read_text())
    c = SimpleNamespace(**raw["text_config"], raw=raw)
    c.bos, c.eos, c.pad = raw["bos_token_id"], raw["eos_token_id"], raw["pad_token_id"]
    c.ratios = c.compress_ratios[: c.num_hidden_layers]
    c.columns = (c.engram_max_ngram_size - 1) * c.engram_n_heads
    return c


def last_up_to(sources, layer):
    return max((s for s in sources if s <= layer), default=-1)


def kind(c, layer):
    """What a layer of the backbone is: a hashable key, equal for layers that run the same code."""
    ratio = c.ratios[layer]
    return SimpleNamespace(
        ratio=ratio,
        kv_source=layer in c.kv_source_layer_ids,
        index_source=layer in c.index_source_layer_ids,
        candidate_source=layer == c.candidate_source_layer_id,
        filtered=layer > c.candidate_source_layer_id >= 0 and layer in c.index_source_layer_ids,
        engram=layer in c.engram_layer_ids,
        source=last_up_to(c.kv_source_layer_ids, layer) if ratio else -1,
    )


def rope_frequencies(c, compressed):
    """fp32 [rope_dim / 2]: the plain table, or the one of layers with a ratio (YaRN)."""
    r = c.qk_rope_head_dim
    theta = c.compress_rope_theta if compressed else c.rope_theta
    f = np.float32(1) / (float(theta) ** (np.arange(0, r, 2, dtype=np.float32) / np.float32(r)).astype(np.float64)).astype(np.float32)
    s = c.rope_scaling
    if not compressed or s["original_max_position_embeddings"] == 0:
        return f

    def pair(rotations):
        return r * math.log(s["original_max_position_embeddings"] / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(pair(s["beta_fast"])), 0), min(math.ceil(pair(s["beta_slow"])), r - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(r // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1).astype(np.float32)
    g = np.float32(1) - ramp
    return (f / np.float32(s["factor"]) * (np.float32(1) - g) + f * g).astype(np.float32)


def _is_prime(n):
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def engram_primes(c):
    """One ascending stream of primes: [layer][column], columns n-gram by n-gram (engram.md 2)."""
    at, out = c.engram_vocab_size - 1, []
    for _ in c.engram_layer_ids:
        primes = []
        while len(primes) < c.columns:
            at += 1
            if _is_prime(at):
                primes.append(at)
        out.append(primes)
    return out


def engram_multipliers(c, layer):
    """engram.md 3; numpy's generator is the one that is specified."""
    bound = (2**63 - 1) // c.engram_compressed_vocab_size // 2
    v = np.random.default_rng(10007 * layer).integers(0, bound, size=c.engram_max_ngram_size, dtype=np.int64)
    return (2 * v + 1).tolist()
