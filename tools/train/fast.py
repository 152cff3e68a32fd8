"""The two halves of a layer for training on a GPU: layers.py's functions with kernels.py's kernels and their gradients.

What differs from layers.py with exact=False: the weights of the attention are rounded to bf16 after the division instead of
before, the hyper-connections' projection is a bf16 product, and the shared expert is one more expert of the dense product.
"""

import torch
import torch.nn.functional as F
import triton
from torch.autograd import Function

import kernels as K
import layers as L
import quant
from sinkhorn import sinkhorn


def power(n):
    return 1 << max(0, n - 1).bit_length()


class Quant(Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        groups = x.numel() // 32
        K.quant_kernel[(triton.cdiv(groups, 64),)](x, y, groups, BLOCK=64)
        return y

    @staticmethod
    def backward(ctx, g):
        return g


def linear(x, w):
    return F.linear(Quant.apply(x), w.bfloat16())


class Swiglu(Function):
    @staticmethod
    def forward(ctx, gu, weight, experts, inter, limit):
        rows = gu.shape[0]
        t = gu.new_empty(rows, experts * inter)
        ctx.size = dict(E=experts, I=inter, J=power(experts * inter // 32), LIMIT=limit)
        K.swiglu_kernel[(rows,)](gu, weight, t, **ctx.size)
        ctx.save_for_backward(gu, weight)
        return t

    @staticmethod
    def backward(ctx, dt):
        gu, weight = ctx.saved_tensors
        dt = dt.contiguous()
        dgu = torch.empty_like(gu)
        e = ctx.size["E"]
        dw = weight.new_empty(gu.shape[0], e, ctx.size["I"] // 32)
        K.swiglu_back_kernel[(gu.shape[0],)](gu, weight, dt, dgu, dw, **ctx.size)
        return dgu, dw.sum(-1), None, None, None


class Post(Function):
    @staticmethod
    def forward(ctx, y, h, post, comb):
        y, h, post, comb = (v.contiguous() for v in (y, h, post, comb))
        out = torch.empty_like(h)
        d = h.shape[-1]
        K.post_kernel[(h.numel() // (4 * d),)](y, h, post, comb, out, D=d)
        ctx.save_for_backward(y, h, post, comb)
        return out

    @staticmethod
    def backward(ctx, g):
        y, h, post, comb = ctx.saved_tensors
        out = [torch.empty_like(v) for v in (y, h, post, comb)]
        d = h.shape[-1]
        K.post_back_kernel[(h.numel() // (4 * d),)](y, h, post, comb, g.contiguous(), *out, D=d)
        return tuple(out)


class Pre(Function):
    """(x, x on the FP8 grid, 1 / rms of the stream): the gradient of x takes both."""

    @staticmethod
    def forward(ctx, h, a, w):
        h, a, w = h.contiguous(), a.contiguous(), w.contiguous()
        d = h.shape[-1]
        x = h.new_empty(*h.shape[:-2], d)
        xq, r = torch.empty_like(x), a.new_empty(a.shape[:-1])
        K.pre_kernel[(r.numel(),)](h, a, w, x, xq, r, D=d)
        ctx.save_for_backward(h, a, w, r)
        return x, xq, r

    @staticmethod
    def backward(ctx, dx, dxq, dr):
        h, a, w, r = ctx.saved_tensors
        d, rows, each = h.shape[-1], r.numel(), 16
        dx = (dx + dxq).contiguous()
        dh, da = torch.empty_like(h), torch.empty_like(a)
        dw = w.new_empty(triton.cdiv(rows, each), d)
        K.pre_back_kernel[(dw.shape[0],)](h, a, w, r, dx, dr.contiguous(), dh, da, dw, rows, D=d, ROWS=each)
        return dh, da, dw.sum(0)


class Rope(Function):
    @staticmethod
    def forward(ctx, x, table, inverse):
        x = x.contiguous()
        y = torch.empty_like(x)
        ctx.table, ctx.inverse = table, inverse
        Rope.run(x, table, y, inverse)
        return y

    @staticmethod
    def run(x, table, y, inverse):
        heads, d = (x.shape[-2], x.shape[-1])
        K.rope_kernel[(x.numel() // (heads * d),)](x, table, y, table.shape[0], H=heads, HD=d, R=table.shape[1] * 2, SIGN=-1.0 if inverse else 1.0)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        out = torch.empty_like(g)
        Rope.run(g, ctx.table, out, not ctx.inverse)
        return out, None, None


def windows(kv, window):
    """[B, T, d] -> [B, T / window, 2 window, d]: each chunk's own keys behind those of the chunk before."""
    keys = kv.unflatten(1, (-1, window))
    return torch.cat((F.pad(keys, (0, 0, 0, 0, 1, 0))[:, :-1], keys), 2)


class Attend(Function):
    @staticmethod
    def forward(ctx, q, kv, rows, selected, sink, window):
        b, t, heads, d = q.shape
        keys = windows(kv, window)
        chunked = q.view(b, t // window, window * heads, d)
        near = chunked @ keys.transpose(-1, -2)
        n = rows.shape[1] if rows is not None else 0
        far = q.view(b, t * heads, d) @ rows.transpose(1, 2) if n else near
        mass = sink.new_empty(b, t, n)
        psink = sink.new_empty(b * t, heads)
        ctx.size = dict(H=heads, W=window, NP=power(n) if n else 0, SCALE=d**-0.5)
        K.softmax_kernel[(b * t,)](near, far, selected if n else near, sink, psink, mass, t, n, num_warps=8, **ctx.size)
        o = (near @ keys).view(b, t, heads, d)
        if n:
            o = o + (far @ rows).view(b, t, heads, d)
        ctx.save_for_backward(q, kv, rows, near, far if n else None, psink)
        ctx.window = window
        ctx.mark_non_differentiable(mass)
        return o, mass

    @staticmethod
    def backward(ctx, do, _):
        q, kv, rows, near, far, psink = ctx.saved_tensors
        b, t, heads, d = q.shape
        window = ctx.window
        n = rows.shape[1] if rows is not None else 0
        keys = windows(kv, window)
        do = do.contiguous()
        chunked, dchunked = q.view(b, t // window, window * heads, d), do.view(b, t // window, window * heads, d)
        flat, dflat = q.view(b, t * heads, d), do.view(b, t * heads, d)
        dnear = dchunked @ keys.transpose(-1, -2)
        dfar = dflat @ rows.transpose(1, 2) if n else dnear
        dsink = torch.empty_like(psink)
        K.softmax_back_kernel[(b * t,)](near, far if n else near, dnear, dfar, psink, dsink, n, num_warps=8, **ctx.size)
        dq = (dnear @ keys).view(b, t, heads, d)
        dkeys = dnear.transpose(-1, -2) @ chunked + near.transpose(-1, -2) @ dchunked
        before, own = dkeys[:, :, :window], dkeys[:, :, window:]
        dkv = (own + F.pad(before[:, 1:], (0, 0, 0, 0, 0, 1))).reshape(kv.shape)
        drows = None
        if n:
            dq = dq + (dfar @ rows).view(b, t, heads, d)
            drows = dfar.transpose(1, 2) @ flat + far.transpose(1, 2) @ dflat
        return dq, dkv, drows, None, dsink.sum(0), None


@torch.no_grad()
def select(dot, weight, k, c, candidates, dense, t):
    """(score, selected, candidates) [R, N]."""
    heads = weight.shape[-1]
    n = dot.shape[-1]
    rows = dot.numel() // (heads * n)
    score = dot.new_empty(rows, n)
    selected = dot.new_empty(rows, n, dtype=torch.int8)
    mode = 1 if k.candidate_source else 2 if k.filtered else 0
    candidates = torch.empty_like(selected) if mode == 1 else candidates
    K.select_kernel[(rows,)](dot, weight, score, selected, candidates if mode else selected, dense, t, n, RATIO=k.ratio, K=min(c.index_topk, n),
                             BLOCKS=min(c.candidate_topk_blocks, n // c.candidate_block_size), SIZE=c.candidate_block_size, MODE=mode, H=heads, NP=power(n))
    return score, selected, candidates


class IndexLoss(Function):
    @staticmethod
    def forward(ctx, dot, weight, score, mass, selected):
        rows, n = score.shape
        loss = mass.new_empty(rows)
        ctx.size = dict(H=weight.shape[-1], NP=power(n))
        K.index_loss_kernel[(rows,)](score, mass, selected, dot, weight, loss, loss, loss, n, GRADIENT=False, **ctx.size)
        ctx.save_for_backward(dot, weight, score, mass, selected)
        return loss.mean()

    @staticmethod
    def backward(ctx, g):
        dot, weight, score, mass, selected = ctx.saved_tensors
        rows, n = score.shape
        ddot, dweight = torch.empty_like(dot), mass.new_empty(rows, weight.shape[-1])
        K.index_loss_kernel[(rows,)](score, mass, selected, dot, weight, mass, ddot, dweight, n, GRADIENT=True, **ctx.size)
        return ddot * (g / rows), (dweight * (g / rows)).view(weight.shape).to(weight.dtype), None, None, None


class Lookup(Function):
    """Rows of a table; the gradient by atomic additions, without sorting."""

    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.shape = table.shape
        return table[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, device=g.device).index_add_(0, index.flatten(), g.reshape(-1, ctx.shape[1]).float()), None


def mixes(h, pre, w, norm, name):
    """(x, x quantised, next mix, post, comb)."""
    x, xq, r = Pre.apply(h, pre, w[norm])
    m = F.linear(h.flatten(-2), w[name + "_fn"].bfloat16()).float() * r[..., None]
    scale, base = w[name + "_scale"], w[name + "_base"]
    after = torch.sigmoid(m[..., :4] * scale[0] + base[:4]) + 1e-6
    post = 2 * torch.sigmoid(m[..., 4:8] * scale[1] + base[4:8])
    return x, xq, after, post, sinkhorn((m[..., 8:] * scale[2] + base[8:]).unflatten(-1, (4, 4)), False)


def attn_half(h, pre, w, k, c, table, shared, dense, exact):
    rows, keys, selected, candidates = shared
    mean = h.detach().float().mean(2).to(torch.bfloat16)
    x, xq, pre_next, post, comb = mixes(h, pre, w, "attn_norm", "hc_attn")
    b, t = x.shape[:2]
    heads, d, rank = c.num_attention_heads, c.head_dim, c.q_lora_rank
    both = F.linear(xq, torch.cat((w["attn.wq_a"], w["attn.wkv"])).bfloat16())
    qr = L.rms_norm(both[..., :rank], w["attn.q_norm"])
    q = Rope.apply(linear(qr, w["attn.wq_b"]).unflatten(-1, (heads, d)), table, False)
    kv = Quant.apply(Rope.apply(L.rms_norm(both[..., rank:], w["attn.kv_norm"])[..., None, :], table, False)[..., 0, :])
    if k.kv_source:
        rows, keys = L.compress(x, w, k.ratio, table)
    loss = None
    if k.index_source:
        ih, idim = c.index_n_heads, c.index_head_dim
        iq = Rope.apply(linear(qr.detach(), w["attn.indexer.wq_b"]).unflatten(-1, (ih, idim)), table, False)
        iq = quant.act_fp4_index(iq)
        weight = (F.linear(x.detach(), w["attn.indexer.weights_proj"].bfloat16()).float() * (idim * ih) ** -0.5).bfloat16().contiguous()
        dot = iq.reshape(b, t * ih, idim) @ keys.transpose(1, 2)
        score, selected, candidates = select(dot.detach(), weight.detach(), k, c, candidates, dense, t)
    o, mass = Attend.apply(q, kv, rows if k.ratio else None, selected, w["attn.attn_sink"], c.sliding_window)
    if k.index_source:
        loss = IndexLoss.apply(dot, weight, score, mass.flatten(0, 1), selected)
    o = Rope.apply(o, table, True).view(b * t, c.o_groups, -1)
    wo_a = w["attn.wo_a"].bfloat16().unflatten(0, (c.o_groups, -1))
    z = torch.bmm(o.transpose(0, 1), wo_a.transpose(1, 2)).transpose(0, 1).reshape(b, t, -1)
    h = Post.apply(linear(z, w["attn.wo_b"]), h, post, comb)
    return h, pre_next, mean, (rows, keys, selected, candidates), loss if loss is not None else h.new_zeros((), dtype=torch.float32)


def ffn_half(h, pre, w, c, topk, exact):
    x, xq, pre_next, post, comb = mixes(h, pre, w, "ffn_norm", "hc_ffn")
    weight, count = L.route(x, w, topk, c.routed_scaling_factor)
    w1, w3, w2 = (w["ffn.experts." + n] for n in ("w1", "w3", "w2"))
    experts, inter, d = w1.shape
    up = torch.cat((w1.flatten(0, 1), w["ffn.shared_experts.w1"], w3.flatten(0, 1), w["ffn.shared_experts.w3"])).bfloat16()
    down = torch.cat((w2.transpose(0, 1).flatten(1), w["ffn.shared_experts.w2"]), 1).bfloat16()
    # The shared expert is the last one, with a weight of one.
    weight = F.pad(weight.flatten(0, -2), (0, 1), value=1.0).contiguous()
    t = Swiglu.apply(F.linear(xq.view(-1, d), up), weight, experts + 1, inter, c.swiglu_limit)
    y = F.linear(t, down).view(x.shape)
    return Post.apply(y, h, post, comb), pre_next, count


def engram(h, rows, w):
    """layers.engram with the table's gradient by atomic additions."""
    return L.engram(h, rows, w, Lookup.apply)
