"""The network (spec model.md 5.2, dspark.md) over a flat dictionary of fp32 parameters named as in the checkpoint, without
".weight"; the experts of a layer are stacked. What a parameter is stored as is `storage`.
"""

import torch
import torch.nn.functional as F

import config
import layers as L
import quant

FP8 = ("attn.wq_a", "attn.wq_b", "attn.wkv", "attn.wo_a", "attn.wo_b", "attn.indexer.wq_b", "engram.wkv", "main_proj",
       "ffn.shared_experts.w1", "ffn.shared_experts.w2", "ffn.shared_experts.w3")
FP4 = ("ffn.experts.w1", "ffn.experts.w2", "ffn.experts.w3")


def storage(name):
    if name.endswith(FP8):
        return "fp8"
    if name.endswith(FP4):
        return "fp4"
    if name.endswith("engram.embed"):
        return "row_fp8"
    if name.endswith(("attn_sink", "gate.bias", "_fn", "_base", "_scale")):
        return "f32"
    return "bf16"


FAKE = {"fp8": quant.weight_fp8, "fp4": quant.weight_fp4, "row_fp8": quant.weight_row_fp8, "bf16": quant.weight_bf16,
        "f32": lambda w: w}


def shapes(c):
    """name -> (shape, standard deviation of the first values, or a constant)."""
    d, hd, hc = c.hidden_size, c.head_dim, c.hc_mult
    heads, inter, out = c.num_attention_heads * hd, c.moe_intermediate_size, c.o_groups * c.o_lora_rank
    s = {"embed": ((c.vocab_size, d), 0.5), "head": ((c.vocab_size, d), d**-0.5), "norm": ((d,), None)}

    def block(p, experts):
        s[p + "attn_norm"] = s[p + "ffn_norm"] = ((d,), None)
        s[p + "attn.wq_a"] = ((c.q_lora_rank, d), d**-0.5)
        s[p + "attn.q_norm"] = ((c.q_lora_rank,), None)
        s[p + "attn.wq_b"] = ((heads, c.q_lora_rank), c.q_lora_rank**-0.5)
        s[p + "attn.wkv"] = ((hd, d), d**-0.5)
        s[p + "attn.kv_norm"] = ((hd,), None)
        s[p + "attn.attn_sink"] = ((c.num_attention_heads,), 0.0)
        s[p + "attn.wo_a"] = ((out, heads // c.o_groups), (heads // c.o_groups) ** -0.5)
        s[p + "attn.wo_b"] = ((d, out), 0.02)
        s[p + "ffn.gate.weight"] = ((experts, d), d**-0.5)
        s[p + "ffn.gate.bias"] = ((experts,), 0.0)
        for e, n in (("ffn.experts", (experts,)), ("ffn.shared_experts", ())):
            s[f"{p}{e}.w1"] = s[f"{p}{e}.w3"] = ((*n, inter, d), d**-0.5)
            s[f"{p}{e}.w2"] = ((*n, d, inter), 0.02)
        for sub in ("hc_attn", "hc_ffn"):
            s[p + sub + "_fn"] = (((2 + hc) * hc, hc * d), 0.01)
            s[p + sub + "_base"] = (((2 + hc) * hc,), 0.0)
            s[p + sub + "_scale"] = ((3,), 0.5)

    for i in range(c.num_hidden_layers):
        p, k = f"layers.{i}.", config.kind(c, i)
        block(p, c.n_routed_experts)
        if k.kv_source:
            s[p + "attn.compressor.wkv"] = ((hd, d), d**-0.5)
            if k.ratio > 1:
                s[p + "attn.compressor.wgate"] = ((hd, d), 0.02)
            s[p + "attn.compressor.norm"] = ((hd,), None)
            s[p + "attn.indexer.wk"] = ((c.index_head_dim, hd), hd**-0.5)
            s[p + "attn.indexer.k_norm"] = ((c.index_head_dim,), None)
        if k.index_source:
            s[p + "attn.indexer.wq_b"] = ((c.index_n_heads * c.index_head_dim, c.q_lora_rank), c.q_lora_rank**-0.5)
            s[p + "attn.indexer.weights_proj"] = ((c.index_n_heads, d), d**-0.5)
        if k.engram:
            rows = c.engram_num_embeddings[c.engram_layer_ids.index(i)]
            s[p + "engram.embed"] = ((rows, c.engram_head_dim), 0.5)
            s[p + "engram.wkv"] = (((hc + 1) * d, c.columns * c.engram_head_dim), 0.02)
            s[p + "engram.q_weight"] = s[p + "engram.k_weight"] = ((hc, d), None)
    for i in range(c.num_nextn_predict_layers):
        p = f"mtp.{i}."
        block(p, c.dspark_n_routed_experts)
        if i == 0:
            s[p + "main_proj"] = ((d, len(c.dspark_target_layer_ids) * d), (3 * d) ** -0.5)
            s[p + "main_norm"] = ((d,), None)
        if i == c.num_nextn_predict_layers - 1:
            s[p + "norm"] = ((d,), None)
            s[p + "markov_head.embed"] = ((c.vocab_size, c.dspark_markov_rank), 0.5)
            s[p + "markov_head.head"] = ((c.vocab_size, c.dspark_markov_rank), 0.02)
            s[p + "confidence_head.proj"] = ((1, d + c.dspark_markov_rank), 0.01)
    return s


def initial(c, seed, device):
    g = torch.Generator().manual_seed(seed)
    out = {}
    for name, (shape, std) in shapes(c).items():
        w = torch.ones(shape) if std is None else torch.full(shape, std) if name.endswith("_scale") else torch.randn(shape, generator=g) * std
        if name.endswith("_base"):
            # Each sublayer first reads mostly one copy of the stream, and the copies hardly mix.
            at = int("".join(ch for ch in name.split(".")[1] if ch.isdigit())) * 2 + ("ffn" in name)
            w[:4] = -2.2
            w[at % 4] = 0.85
            w[8:] = (torch.eye(4) * 4).flatten()
        out[name] = w.to(device)
    return out


def part(weights, prefix):
    return {n[len(prefix) :]: w for n, w in weights.items() if n.startswith(prefix)}


def on_grid(weights):
    """Every parameter on its grid; those of one shape and storage in one go."""
    groups = {}
    for n, w in weights.items():
        groups.setdefault((tuple(w.shape), storage(n)), []).append(n)
    out = {}
    for (_, kind), names in groups.items():
        if kind == "f32":
            out.update((n, weights[n]) for n in names)
        else:
            out.update(zip(names, FAKE[kind](torch.stack([weights[n] for n in names])).unbind()))
    return out


def kl(score, mass, selected):
    """Mean over the queries of KL(attention's weights of the selected rows || softmax of the index scores)."""
    rows = mass.sum(-1, keepdim=True)
    target = mass / (rows + 1e-9)
    log_q = torch.log_softmax(score.float().masked_fill(~selected, -1e4), -1)
    return (target * (torch.log(target + 1e-9) - log_q)).sum(-1).mean()


def attention(x, w, k, c, table, shared, dense, exact):
    """y [B, T, D]; `shared` = (rows, keys, selected, candidates) is what source layers leave to the layers after them. `dense`
    [1], where above zero, selects every visible row: so training begins."""
    rows, keys, selected, candidates = shared
    qr = L.rms_norm(L.linear(x, w["attn.wq_a"]), w["attn.q_norm"])
    q = L.rope(L.linear(qr, w["attn.wq_b"]).unflatten(-1, (c.num_attention_heads, c.head_dim)), table[:, None])
    kv = quant.act_fp8(L.rope(L.rms_norm(L.linear(x, w["attn.wkv"]), w["attn.kv_norm"]), table))
    if k.kv_source:
        rows, keys = L.compress(x, w, k.ratio, table)
    score = None
    if k.index_source:
        visible = L.visible_rows(x.shape[1], rows.shape[1], k.ratio, x.device)
        score = L.index_scores(x, qr, keys, w, table, c.index_n_heads, c.index_head_dim, exact)
        score = score.masked_fill(~visible, float("-inf"))
        with torch.no_grad():
            if k.candidate_source:
                candidates = L.candidate_mask(score, visible, k.ratio, c.candidate_topk_blocks, c.candidate_block_size, exact)
            limited = score.masked_fill(~candidates, float("-inf")) if k.filtered else score
            selected = L.top_mask(limited, c.index_topk, exact) | (visible & (dense > 0))
    shown = (rows, selected) if k.ratio else (None, None)
    o, mass = L.attend(q, kv, *shown, w["attn.attn_sink"], c.sliding_window, exact)
    y = L.grouped_output(o, w, c.o_groups, table)
    loss = kl(score, mass, selected) if score is not None and not exact else x.new_zeros((), dtype=torch.float32)
    return y, (rows, keys, selected, candidates), loss


def attn_half(h, pre, w, k, c, table, shared, dense, exact):
    """The stream, the mix of the second half, the mean of the input's copies, what sources share, the index loss."""
    mean = h.float().mean(2).to(torch.bfloat16)
    pre_next, post, comb = L.hc_mixes(h, w["hc_attn_fn"], w["hc_attn_scale"], w["hc_attn_base"], exact)
    x = L.rms_norm(L.hc_pre(h, pre), w["attn_norm"])
    y, shared, loss = attention(x, w, k, c, table, shared, dense, exact)
    return L.hc_post(y, h, post, comb), pre_next, mean, shared, loss


def ffn_half(h, pre, w, c, topk, exact):
    pre_next, post, comb = L.hc_mixes(h, w["hc_ffn_fn"], w["hc_ffn_scale"], w["hc_ffn_base"], exact)
    x = L.rms_norm(L.hc_pre(h, pre), w["ffn_norm"])
    y, count = L.moe(x, w, topk, c.routed_scaling_factor, c.swiglu_limit, exact)
    return L.hc_post(y, h, post, comb), pre_next, count


def draft_half(h, pre, main_x, w, c, at, table, block_table, exact):
    """The attention half of a draft stage on blocks: h [B*A, block, 4, D]; main_x [B, T, D]; `at` [B, A] is the last committed position."""
    pre_ffn, post, comb = L.hc_mixes(h, w["hc_attn_fn"], w["hc_attn_scale"], w["hc_attn_base"], exact)
    x = L.rms_norm(L.hc_pre(h, pre), w["attn_norm"])

    def window_rows(v, angles):
        return quant.act_fp8(L.rope(L.rms_norm(L.linear(v, w["attn.wkv"]), w["attn.kv_norm"]), angles))

    ring = window_rows(main_x, table)
    back = at[..., None] - torch.arange(c.sliding_window - 1, -1, -1, device=at.device)  # [B, A, window]
    ring = torch.gather(ring, 1, back.clamp(min=0).flatten(1)[..., None].expand(-1, -1, ring.shape[-1])).view(-1, c.sliding_window, ring.shape[-1])
    kv = torch.cat((ring, window_rows(x, block_table)), 1)
    qr = L.rms_norm(L.linear(x, w["attn.wq_a"]), w["attn.q_norm"])
    q = L.rope(L.linear(qr, w["attn.wq_b"]).unflatten(-1, (c.num_attention_heads, c.head_dim)), block_table[:, :, None])
    seen = F.pad(back.flatten(0, 1) >= 0, (0, x.shape[1]), value=True)
    kv, q = kv.float(), q.float()
    scores = torch.einsum("bthd,bkd->bthk", q, kv) * c.head_dim**-0.5
    scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
    largest = scores.detach().amax(-1, keepdim=True)
    p = torch.exp(scores - largest)
    total = p.sum(-1, keepdim=True) + torch.exp(w["attn.attn_sink"][:, None] - largest)
    o = torch.einsum("bthk,bkd->bthd", p.to(torch.bfloat16).float(), kv) / total
    o = L.rope(o.to(torch.bfloat16), block_table[:, :, None], inverse=True)
    z = torch.einsum("btgk,grk->btgr", o.reshape(*o.shape[:2], c.o_groups, -1),
                     w["attn.wo_a"].to(torch.bfloat16).unflatten(0, (c.o_groups, -1))).flatten(2)
    return L.hc_post(L.linear(z, w["attn.wo_b"]), h, post, comb), pre_ffn


class Tables:
    """Angles and hashes: no parameters."""

    def __init__(self, c, token_map, length, device):
        def angles(compressed):
            t = torch.arange(length, dtype=torch.float32)[:, None] * torch.from_numpy(config.rope_frequencies(c, compressed))
            t = t.double()
            return torch.stack((t.cos(), t.sin()), -1).float().to(device)

        self.plain, self.compressed = angles(False), angles(True)
        self.token_map = torch.tensor(token_map, device=device)
        self.pad = token_map[c.engram_pad_token_id]
        self.hashes = {i: (config.engram_multipliers(c, i), p) for i, p in zip(c.engram_layer_ids, config.engram_primes(c))}

    def memory(self, i, ids):
        return L.engram_rows(ids, self.token_map, self.pad, *self.hashes[i])


def start(rows, c):
    """The stream and the mix that a pass begins with, from embedding rows [..., D]."""
    h = rows.to(torch.bfloat16)[..., None, :].expand(*rows.shape[:-1], c.hc_mult, -1)
    pre = torch.zeros(*rows.shape[:-1], c.hc_mult, device=rows.device)
    pre[..., 0] = 1
    return h.contiguous(), pre


def collapse(h, pre, norm):
    z = L.hc_pre(h, pre)
    return z, L.rms_norm(z, norm)


class Net:
    """The functions above over one dictionary of parameters. A step begins with `refresh`."""

    def __init__(self, c, weights, tables, parts=None):
        """parts: a module with other versions of attn_half, ffn_half and engram (fast.py)."""
        self.c, self.parameters, self.tables = c, weights, tables
        self.attn_half = parts.attn_half if parts else attn_half
        self.ffn_half = parts.ffn_half if parts else ffn_half
        self.engram = parts.engram if parts else L.engram
        self.lookup = parts.Lookup.apply if parts else lambda table, rows: F.embedding(rows, table)
        self.kinds = [config.kind(c, i) for i in range(c.num_hidden_layers)]
        self.last_stage = f"mtp.{c.num_nextn_predict_layers - 1}."
        self.refresh()

    def refresh(self):
        self.w = on_grid(self.parameters)
        blocks = [f"layers.{i}." for i in range(self.c.num_hidden_layers)] + [f"mtp.{s}." for s in range(self.c.num_nextn_predict_layers)]
        self.blocks = {p: {half: {n: w for n, w in part(self.w, p).items() if n.startswith(starts)} for half, starts in
                           (("attn", ("attn", "hc_attn")), ("ffn", ("ffn", "hc_ffn")), ("engram", ("engram",)))} for p in blocks}

    def release(self):
        """Drops the step's graph: what a capture records must not hang on nodes of an earlier step."""
        self.w = self.blocks = None

    def backbone(self, ids, dense=None, exact=False, watch=None):
        """x [B, T, D] after the last norm, main_hidden [B, T, targets * D], loads by layer, index losses."""
        c = self.c
        t = ids.shape[1]
        dense = torch.zeros(1, device=ids.device, dtype=torch.int32) if dense is None else dense
        padded = F.pad(ids, (0, -t % c.sliding_window), value=c.pad)  # behind the end: no row sees them
        h, pre = start(self.lookup(self.w["embed"], padded), c)
        shared, counts, losses, means = (None,) * 4, {}, [], []
        for i, k in enumerate(self.kinds):
            w = self.blocks[f"layers.{i}."]
            if k.engram:
                h = self.engram(h, self.tables.memory(i, padded), w["engram"])
            table = (self.tables.compressed if k.ratio else self.tables.plain)[: padded.shape[1]]
            h, pre, mean, shared, loss = self.attn_half(h, pre, w["attn"], k, c, table, shared, dense, exact)
            h, pre, counts[f"layers.{i}."] = self.ffn_half(h, pre, w["ffn"], c, c.num_experts_per_tok, exact)
            losses.append(loss)
            if i in c.dspark_target_layer_ids:
                means.append(mean[:, :t])
            if watch is not None:
                watch(i, h[:, :t], pre[:, :t])
        x = collapse(h, pre, self.w["norm"])[1][:, :t]
        return x, torch.cat(means, -1) if means else None, counts, sum(losses)

    def logits(self, x):
        return F.linear(x.float(), self.w["head"])

    def drafts(self, main_hidden, ids, at, exact=False):
        """z, normed z [B, A, block, D] and loads, of a block behind each position `at` [B, A], whose anchor is ids[at + 1]."""
        c, w = self.c, self.w
        block = c.dspark_block_size
        main_x = L.rms_norm(L.linear(main_hidden, w["mtp.0.main_proj"]), w["mtp.0.main_norm"])
        anchor = torch.gather(ids, 1, at + 1).flatten()
        inputs = torch.full((anchor.numel(), block), c.dspark_noise_token_id, device=ids.device)
        inputs[:, 0] = anchor
        h, pre = start(self.lookup(w["embed"].detach(), inputs), c)
        positions = at.flatten()[:, None] + 1 + torch.arange(block, device=ids.device)
        block_table = self.tables.plain[positions]
        counts = {}
        for s in range(c.num_nextn_predict_layers):
            b = self.blocks[f"mtp.{s}."]
            h, pre = draft_half(h, pre, main_x, b["attn"], c, at, self.tables.plain[: main_x.shape[1]], block_table, exact)
            h, pre, counts[f"mtp.{s}."] = self.ffn_half(h, pre, b["ffn"], c, c.dspark_num_experts_per_tok, exact)
        z, x = collapse(h, pre, w[self.last_stage + "norm"])
        return z.unflatten(0, at.shape), x.unflatten(0, at.shape), counts

    def markov(self, token):
        """(embedding, logits to add) of a token."""
        e = self.lookup(self.w[self.last_stage + "markov_head.embed"], token)
        return e, F.linear(e, self.w[self.last_stage + "markov_head.head"])

    def confidence(self, z, e):
        return F.linear(torch.cat((z.float(), e.float()), -1), self.w[self.last_stage + "confidence_head.proj"])[..., 0]
