"""The parts of a layer (spec model.md 5 to 7, engram.md), for training and, with exact=True, for comparison.

Shapes: B sequences of T tokens, D = hidden size, H heads of d values, N compressed rows. Activations are bf16 and are rounded
where the specification rounds. `exact` adds what training leaves out for speed: fp32 scores, one product an expert, ties to
the lower position.
"""

import torch
import torch.nn.functional as F

import quant
from sinkhorn import sinkhorn


def product(x, w):
    """bf16 operands, fp32 accumulation, bf16 result; on a CPU without bf16 instructions fp32 is faster, and the same."""
    if x.is_cuda:
        return F.linear(x, w.to(torch.bfloat16))
    return F.linear(x.float(), w.to(torch.bfloat16).float()).to(torch.bfloat16)


def linear(x, w):
    """W8A8 or W4A8: both operands are on their grids, so a bf16 product with fp32 accumulation is the specified one."""
    return product(quant.act_fp8(x), w)


def rms_norm(x, w):
    v = x.float()
    return (w.float() * (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-20))).to(x.dtype)


def rope(x, table, inverse=False):
    """Rotates the last values of [..., n]; table [..., r/2, 2] broadcasts against x's leading axes."""
    r = table.shape[-2] * 2
    plain, turned = x[..., :-r], x[..., -r:].float().unflatten(-1, (-1, 2))
    cos, sin = table[..., 0], (-table[..., 1] if inverse else table[..., 1])
    re, im = turned[..., 0], turned[..., 1]
    out = torch.stack((re * cos - im * sin, re * sin + im * cos), -1).flatten(-2)
    return torch.cat((plain, out.to(x.dtype)), -1)


def hc_mixes(h, fn, scale, base, exact):
    """(pre [B,T,4], post [B,T,4], C [B,T,4,4]) of a stream [B,T,4,D]; fp32 (5.3)."""
    v = h.float().flatten(-2)
    r = torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-20)
    m = F.linear(v, fn) * r
    pre = torch.sigmoid(m[..., :4] * scale[0] + base[:4]) + 1e-6
    post = 2 * torch.sigmoid(m[..., 4:8] * scale[1] + base[4:8])
    return pre, post, sinkhorn((m[..., 8:] * scale[2] + base[8:]).unflatten(-1, (4, 4)), exact)


def hc_pre(h, a):
    return (a[..., None] * h.float()).sum(-2).to(h.dtype)


def hc_post(y, h, post, comb):
    v = h.float()
    mixed = sum(comb[..., i, :, None] * v[..., i, None, :] for i in range(4))
    return (post[..., None] * y.float()[..., None, :] + mixed).to(h.dtype)


def engram_rows(ids, token_map, pad, multipliers, primes):
    """Table rows [B, T, columns] of token ids [B, T] (engram.md 4); primes by column, n-gram by n-gram."""
    compressed = token_map[ids]
    x = compressed * multipliers[0]
    rows, offset, heads = [], 0, len(primes) // (len(multipliers) - 1)
    for back in range(1, len(multipliers)):
        x = x ^ (F.pad(compressed, (back, 0), value=pad)[:, : ids.shape[1]] * multipliers[back])
        for p in primes[(back - 1) * heads : back * heads]:
            rows.append(x % p + offset)
            offset += p
    return torch.stack(rows, -1)


def engram(h, rows, w, lookup=lambda table, rows: F.embedding(rows, table)):
    """The stream with the gated memory added (engram.md 5)."""
    d = h.shape[-1]
    e = lookup(w["engram.embed"], rows).flatten(-2).to(torch.bfloat16)
    kv = linear(e, w["engram.wkv"])
    key, value = kv[..., : 4 * d].float().unflatten(-1, (4, d)), kv[..., 4 * d :].float()
    v = h.float()
    ww = w["engram.q_weight"].float() * w["engram.k_weight"].float()
    dot = (v * ww * key).sum(-1)
    dot = dot * (torch.rsqrt(v.square().mean(-1) + 1e-20) * torch.rsqrt(key.square().mean(-1) + 1e-20)) * d**-0.5
    root = torch.sqrt(dot.abs().clamp(min=1e-6))
    g = torch.sigmoid(torch.where(dot < 0, -root, root))
    return (v + g[..., None] * value[..., None, :]).to(h.dtype)


def compress(x, w, ratio, table):
    """Compressed rows and index keys [B, N, .] of a source layer, and their latents (6.5)."""
    wkv = w["attn.compressor.wkv"]
    if ratio == 2:
        # fp32 products of bf16 operands, two tokens a row.
        a = F.linear(x.float(), wkv.float()).unflatten(1, (-1, 2))
        g = F.linear(x.float(), w["attn.compressor.wgate"].float()).unflatten(1, (-1, 2))
        latent = (torch.softmax(g, 2) * a).sum(2).to(torch.bfloat16)
    else:
        latent = product(x, wkv)
    latent = rms_norm(latent, w["attn.compressor.norm"])
    # The index keys learn from their own loss only: the selection has no gradient.
    key = rms_norm(product(latent.detach(), w["attn.indexer.wk"]), w["attn.indexer.k_norm"])
    key = quant.act_fp4_index(rope(key, table[::ratio]))
    return quant.act_fp4_cache(rope(latent, table[::ratio])), key


def index_scores(x, qr, key, w, table, heads, key_dim, exact):
    """bf16 [B, T, N] (6.6)."""
    q = linear(qr.detach(), w["attn.indexer.wq_b"]).unflatten(-1, (heads, key_dim))
    q = quant.act_fp4_index(rope(q, table[:, None]))
    weight = (product(x.detach(), w["attn.indexer.weights_proj"]).float() * (key_dim * heads) ** -0.5).to(torch.bfloat16)
    b, t = q.shape[:2]
    dot = (q.reshape(b, t * heads, key_dim) @ key.transpose(1, 2)).unflatten(1, (t, heads))
    u = dot.clamp(min=0) * weight[..., None]
    return u.float().sum(2).to(torch.bfloat16)


def visible_rows(t, n, ratio, device):
    """bool [T, N]: row j is seen by query p when j < (p + 1) // ratio."""
    p = torch.arange(t, device=device)[:, None]
    return torch.arange(n, device=device)[None] < (p + 1) // ratio


def top_mask(score, k, exact):
    """bool, true for the k largest finite entries of the last axis; equal ones: the lower position when exact."""
    n = score.shape[-1]
    if k >= n:
        return score > float("-inf")
    if exact:
        index = torch.sort(score.float(), dim=-1, descending=True, stable=True)[1][..., :k]
        mask = torch.zeros_like(score, dtype=torch.bool).scatter_(-1, index, True)
        return mask & (score > float("-inf"))
    threshold = torch.topk(score.detach(), k, -1, sorted=True)[0][..., -1:]
    return (score >= threshold) & (score > float("-inf"))


def candidate_mask(score, visible, ratio, blocks, size, exact):
    """bool [B, T, N]: the rows of the best blocks, the newest block always among them (6.6, level 1)."""
    b, t, n = score.shape
    padded = F.pad(score, (0, -n % size), value=float("-inf"))
    best = padded.unflatten(-1, (-1, size)).amax(-1)
    newest = (torch.arange(1, t + 1, device=score.device) // ratio - 1) // size
    is_newest = torch.arange(best.shape[-1], device=score.device)[None] == newest[:, None]
    best = torch.where(is_newest & visible.any(-1, keepdim=True), torch.tensor(float("inf"), device=score.device), best.float())
    return top_mask(best, blocks, exact).repeat_interleave(size, -1)[..., :n]


def online_weights(scores, at, i, selected, window):
    """bf16 rounds a weight relative to the largest score up to its block of 64 keys: window slots first, then selected rows."""
    slot = (at - (i - window + 1)).clamp(min=0)[None, :, None]  # [1, T, 1, 2 window]
    if selected is not None:
        slot = torch.cat((slot.expand(scores.shape[0], -1, -1, -1), window + selected.long().cumsum(-1)[:, :, None] - 1), -1)
    block = slot // 64
    weights, largest = torch.zeros_like(scores), torch.full_like(scores[..., :1], -1e30)
    for b in range(int(block.max()) + 1):
        inside = scores.masked_fill(block != b, float("-inf"))
        new = torch.maximum(largest, inside.amax(-1, keepdim=True))
        weights = weights * torch.exp(largest - new) + torch.exp(inside - new).to(torch.bfloat16).float()
        largest = new
    return weights


def attend(q, kv, compressed, selected, sink, window, exact):
    """o [B, T, H, d] of queries over their window and the selected compressed rows (6.7), and the mean over the heads of
    the weight that each compressed row got [B, T, N] (None without rows). T is a multiple of the window."""
    b, t, heads, d = q.shape
    chunks = t // window
    dtype = torch.float32 if exact else q.dtype
    q, kv = q.to(dtype), kv.to(dtype)
    # A chunk of `window` queries sees its own chunk's keys and the one before.
    keys = kv.unflatten(1, (chunks, window))
    keys = torch.cat((F.pad(keys, (0, 0, 0, 0, 1, 0))[:, :chunks], keys), 2)
    near = (q.reshape(b, chunks, window * heads, d) @ keys.transpose(-1, -2)).reshape(b, t, heads, 2 * window)
    i = torch.arange(t, device=q.device)[:, None]
    at = (i // window - 1) * window + torch.arange(2 * window, device=q.device)[None]
    seen = (at >= 0) & (at <= i) & (at > i - window)
    near = near.float() * d**-0.5 + torch.where(seen, 0.0, float("-inf"))[:, None]
    if compressed is None:
        scores = near
    else:
        rows = compressed.to(dtype)
        far = (q.reshape(b, t * heads, d) @ rows.transpose(1, 2)).unflatten(1, (t, heads))
        far = far.float() * d**-0.5 + torch.where(selected, 0.0, float("-inf"))[:, :, None]
        scores = torch.cat((near, far), -1)
    largest = scores.detach().amax(-1, keepdim=True)
    p = torch.exp(scores - largest)
    total = p.sum(-1, keepdim=True) + torch.exp(sink[:, None] - largest)
    pb = online_weights(scores, at, i, selected, window) if exact else p.to(torch.bfloat16)
    o = (pb[..., : 2 * window].reshape(b, chunks, window * heads, 2 * window) @ keys).reshape(b, t, heads, d)
    mass = None
    if compressed is not None:
        far_p = pb[..., 2 * window :]
        o = o + (far_p.reshape(b, t * heads, -1) @ rows).reshape(b, t, heads, d)
        mass = (p[..., 2 * window :] / total).mean(2).detach()
    return (o.float() / total).to(torch.bfloat16), mass


def grouped_output(o, w, groups, table):
    """[B, T, D] from [B, T, H, d] (6.8): wo_a by groups of heads with unquantised bf16 input, then wo_b."""
    o = rope(o, table[:, None], inverse=True)
    b, t = o.shape[:2]
    o = o.reshape(b * t, groups, -1)
    wo_a = w["attn.wo_a"].to(torch.bfloat16).unflatten(0, (groups, -1))
    if not o.is_cuda:
        o, wo_a = o.float(), wo_a.float()
    z = torch.einsum("tgk,grk->tgr", o, wo_a).reshape(b, t, -1).to(torch.bfloat16)
    return linear(z, w["attn.wo_b"])


def route(x, w, topk, scale):
    """Weights [B, T, E] of the experts, zero where not chosen, and how often each was chosen [E] (7)."""
    s = torch.sqrt(F.softplus(F.linear(x.float(), w["ffn.gate.weight"].float())))
    biased = (s + w["ffn.gate.bias"]).detach()
    mask = torch.zeros_like(s).scatter_(-1, torch.topk(biased, topk, -1)[1], 1.0)
    chosen = s * mask
    return chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * scale, mask.flatten(0, -2).sum(0).detach()


def swiglu(g, u, limit):
    u = u.float().clamp(-limit, limit)
    g = g.float().clamp(max=limit)
    return F.silu(g) * u


def moe(x, w, topk, scale, limit, exact):
    """Every expert runs on every token, weighted by zero where it was not chosen: at this size that is one dense product."""
    weight, count = route(x, w, topk, scale)
    w1, w3, w2 = w["ffn.experts.w1"], w["ffn.experts.w3"], w["ffn.experts.w2"]
    experts, inter, _ = w1.shape
    g, u = linear(x, w1.flatten(0, 1)), linear(x, w3.flatten(0, 1))
    t = swiglu(g, u, limit).unflatten(-1, (experts, inter)) * weight[..., None]
    t = t.to(torch.bfloat16)
    if exact:
        y = sum(linear(t[..., e, :], w2[e]).float() for e in range(experts))
    else:
        y = linear(t.flatten(-2), w2.transpose(0, 1).flatten(1)).float()
    shared = swiglu(linear(x, w["ffn.shared_experts.w1"]), linear(x, w["ffn.shared_experts.w3"]), limit).to(torch.bfloat16)
    return (y + linear(shared, w["ffn.shared_experts.w2"]).float()).to(torch.bfloat16), count
