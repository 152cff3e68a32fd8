"""Triton kernels of the training step: one pass over memory for each stage, forward and backward. fast.py has the autograd
functions around them. A row is a token; D channels, H heads, W the window, N compressed rows."""

import triton
import triton.language as tl


@triton.jit
def e4m3_grid(v, group_max):
    """Nearest e4m3 value times the power-of-two scale of its group; group_max broadcasts against v."""
    bits = (tl.maximum(group_max, 1e-4) * 0.002232142857142857).to(tl.int32, bitcast=True)
    e = ((bits >> 23) & 255) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    s = (e << 23).to(tl.float32, bitcast=True)
    inv = ((254 - e) << 23).to(tl.float32, bitcast=True)
    q = v * inv
    a = tl.minimum(tl.abs(q), 448.0)
    b = a.to(tl.int32, bitcast=True)
    normal = (((b + 0x7FFFF + ((b >> 20) & 1)) >> 20) << 20).to(tl.float32, bitcast=True)
    small = (a + 24576.0) - 24576.0
    r = tl.where(a < 0.015625, small, normal)
    return tl.where(q < 0, -r, r) * s


@triton.jit
def quant_kernel(x, y, groups, BLOCK: tl.constexpr):
    g = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = g[:, None].to(tl.int64) * 32 + tl.arange(0, 32)[None]
    ok = (g < groups)[:, None]
    v = tl.load(x + at, mask=ok, other=0.0).to(tl.float32)
    tl.store(y + at, e4m3_grid(v, tl.max(tl.abs(v), axis=1)[:, None]).to(tl.bfloat16), mask=ok)


@triton.jit
def swiglu_kernel(gu, weight, t, E: tl.constexpr, I: tl.constexpr, J: tl.constexpr, LIMIT: tl.constexpr):
    """gu [R, 2, E * I], weight [R, E] -> t [R, E * I], quantised. J: a power of two, at least E * I / 32."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, J)
    ok = (j < E * I // 32)[:, None]
    at = j[:, None] * 32 + tl.arange(0, 32)[None]
    g = tl.minimum(tl.load(gu + row * 2 * E * I + at, mask=ok, other=0.0).to(tl.float32), LIMIT)
    u = tl.load(gu + row * 2 * E * I + E * I + at, mask=ok, other=0.0).to(tl.float32)
    u = tl.minimum(tl.maximum(u, -LIMIT), LIMIT)
    w = tl.load(weight + row * E + j // (I // 32), mask=j < E * I // 32, other=0.0)[:, None]
    v = (w * (g / (1.0 + tl.exp(-g)) * u)).to(tl.bfloat16).to(tl.float32)
    tl.store(t + row * E * I + at, e4m3_grid(v, tl.max(tl.abs(v), axis=1)[:, None]).to(tl.bfloat16), mask=ok)


@triton.jit
def swiglu_back_kernel(gu, weight, dt, dgu, dweight, E: tl.constexpr, I: tl.constexpr, J: tl.constexpr, LIMIT: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, J)
    ok = (j < E * I // 32)[:, None]
    at = j[:, None] * 32 + tl.arange(0, 32)[None]
    g0 = tl.load(gu + row * 2 * E * I + at, mask=ok, other=0.0).to(tl.float32)
    u0 = tl.load(gu + row * 2 * E * I + E * I + at, mask=ok, other=0.0).to(tl.float32)
    d = tl.load(dt + row * E * I + at, mask=ok, other=0.0).to(tl.float32)
    w = tl.load(weight + row * E + j // (I // 32), mask=j < E * I // 32, other=0.0)[:, None]
    g = tl.minimum(g0, LIMIT)
    u = tl.minimum(tl.maximum(u0, -LIMIT), LIMIT)
    sig = 1.0 / (1.0 + tl.exp(-g))
    silu = g * sig
    dg = d * w * u * (sig * (1.0 + g * (1.0 - sig)))
    du = d * w * silu
    tl.store(dgu + row * 2 * E * I + at, tl.where(g0 <= LIMIT, dg, 0.0).to(tl.bfloat16), mask=ok)
    tl.store(dgu + row * 2 * E * I + E * I + at, tl.where(tl.abs(u0) <= LIMIT, du, 0.0).to(tl.bfloat16), mask=ok)
    # A group of 32 is part of one expert; the groups of an expert are summed outside.
    tl.store(dweight + row * (E * I // 32) + j, tl.sum(d * silu * u, axis=1), mask=j < E * I // 32)


@triton.jit
def post_kernel(y, h, post, comb, out, D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D)
    v = tl.load(y + row * D + d).to(tl.float32)
    h0 = tl.load(h + row * 4 * D + d).to(tl.float32)
    h1 = tl.load(h + row * 4 * D + D + d).to(tl.float32)
    h2 = tl.load(h + row * 4 * D + 2 * D + d).to(tl.float32)
    h3 = tl.load(h + row * 4 * D + 3 * D + d).to(tl.float32)
    for k in tl.static_range(4):
        o = tl.load(post + row * 4 + k) * v
        o += tl.load(comb + row * 16 + k) * h0 + tl.load(comb + row * 16 + 4 + k) * h1
        o += tl.load(comb + row * 16 + 8 + k) * h2 + tl.load(comb + row * 16 + 12 + k) * h3
        tl.store(out + row * 4 * D + k * D + d, o.to(tl.bfloat16))


@triton.jit
def post_back_kernel(y, h, post, comb, g, dy, dh, dpost, dcomb, D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D)
    v = tl.load(y + row * D + d).to(tl.float32)
    g0 = tl.load(g + row * 4 * D + d).to(tl.float32)
    g1 = tl.load(g + row * 4 * D + D + d).to(tl.float32)
    g2 = tl.load(g + row * 4 * D + 2 * D + d).to(tl.float32)
    g3 = tl.load(g + row * 4 * D + 3 * D + d).to(tl.float32)
    p = post + row * 4
    tl.store(dy + row * D + d, (tl.load(p) * g0 + tl.load(p + 1) * g1 + tl.load(p + 2) * g2 + tl.load(p + 3) * g3).to(tl.bfloat16))
    q = dpost + row * 4
    tl.store(q, tl.sum(g0 * v, axis=0))
    tl.store(q + 1, tl.sum(g1 * v, axis=0))
    tl.store(q + 2, tl.sum(g2 * v, axis=0))
    tl.store(q + 3, tl.sum(g3 * v, axis=0))
    for i in tl.static_range(4):
        c = comb + row * 16 + i * 4
        hi = tl.load(h + row * 4 * D + i * D + d).to(tl.float32)
        tl.store(dh + row * 4 * D + i * D + d, (tl.load(c) * g0 + tl.load(c + 1) * g1 + tl.load(c + 2) * g2 + tl.load(c + 3) * g3).to(tl.bfloat16))
        o = dcomb + row * 16 + i * 4
        tl.store(o, tl.sum(g0 * hi, axis=0))
        tl.store(o + 1, tl.sum(g1 * hi, axis=0))
        tl.store(o + 2, tl.sum(g2 * hi, axis=0))
        tl.store(o + 3, tl.sum(g3 * hi, axis=0))


@triton.jit
def pre_kernel(h, a, w, x, xq, r, D: tl.constexpr):
    """x = RMSNorm(sum of the copies by a) * w, x on the FP8 grid, and 1 / rms of the whole row of 4 D values."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D)
    z = tl.zeros([D], tl.float32)
    square = tl.zeros([D], tl.float32)
    for c in tl.static_range(4):
        v = tl.load(h + row * 4 * D + c * D + d).to(tl.float32)
        z += tl.load(a + row * 4 + c) * v
        square += v * v
    tl.store(r + row, 1.0 / tl.sqrt(tl.sum(square, axis=0) / (4 * D) + 1e-20))
    z = z.to(tl.bfloat16).to(tl.float32)
    o = (tl.load(w + d) * (z / tl.sqrt(tl.sum(z * z, axis=0) / D + 1e-20))).to(tl.bfloat16)
    tl.store(x + row * D + d, o)
    blocks = tl.reshape(o.to(tl.float32), (D // 32, 32))
    tl.store(xq + row * D + d, tl.reshape(e4m3_grid(blocks, tl.max(tl.abs(blocks), axis=1)[:, None]), (D,)).to(tl.bfloat16))


@triton.jit
def pre_back_kernel(h, a, w, r, dx, dr, dh, da, dw, rows, D: tl.constexpr, ROWS: tl.constexpr):
    """ROWS rows a program; dw [programs, D] are partial sums."""
    d = tl.arange(0, D)
    weight = tl.load(w + d)
    dweight = tl.zeros([D], tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    for i in range(ROWS):
        row = first + i
        if row < rows:
            base = h + row * 4 * D + d
            h0 = tl.load(base).to(tl.float32)
            h1 = tl.load(base + D).to(tl.float32)
            h2 = tl.load(base + 2 * D).to(tl.float32)
            h3 = tl.load(base + 3 * D).to(tl.float32)
            a0 = tl.load(a + row * 4)
            a1 = tl.load(a + row * 4 + 1)
            a2 = tl.load(a + row * 4 + 2)
            a3 = tl.load(a + row * 4 + 3)
            z = (a0 * h0 + a1 * h1 + a2 * h2 + a3 * h3).to(tl.bfloat16).to(tl.float32)
            rstd = 1.0 / tl.sqrt(tl.sum(z * z, axis=0) / D + 1e-20)
            n = z * rstd
            g = tl.load(dx + row * D + d).to(tl.float32)
            dweight += g * n
            gn = g * weight
            dz = rstd * (gn - n * (tl.sum(gn * n, axis=0) / D))
            rr = tl.load(r + row)
            k = -tl.load(dr + row) * rr * rr * rr / (4 * D)
            out = dh + row * 4 * D + d
            tl.store(out, (a0 * dz + k * h0).to(tl.bfloat16))
            tl.store(out + D, (a1 * dz + k * h1).to(tl.bfloat16))
            tl.store(out + 2 * D, (a2 * dz + k * h2).to(tl.bfloat16))
            tl.store(out + 3 * D, (a3 * dz + k * h3).to(tl.bfloat16))
            tl.store(da + row * 4, tl.sum(dz * h0, axis=0))
            tl.store(da + row * 4 + 1, tl.sum(dz * h1, axis=0))
            tl.store(da + row * 4 + 2, tl.sum(dz * h2, axis=0))
            tl.store(da + row * 4 + 3, tl.sum(dz * h3, axis=0))
    tl.store(dw + tl.program_id(0) * D + d, dweight)


@triton.jit
def rope_kernel(x, table, y, T, H: tl.constexpr, HD: tl.constexpr, R: tl.constexpr, SIGN: tl.constexpr):
    """x [rows, H, HD], table [T, R / 2, 2]; the position of a row is row % T."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, H)[:, None]
    base = row * H * HD + head * HD
    plain = tl.arange(0, HD)[None]
    keep = (plain < HD - R) & (head < H)
    tl.store(y + base + plain, tl.load(x + base + plain, mask=keep, other=0.0), mask=keep)
    i = tl.arange(0, R // 2)
    cos = tl.load(table + (row % T) * R + 2 * i)[None]
    sin = tl.load(table + (row % T) * R + 2 * i + 1)[None] * SIGN
    at = base + HD - R + 2 * i[None]
    re = tl.load(x + at).to(tl.float32)
    im = tl.load(x + at + 1).to(tl.float32)
    tl.store(y + at, (re * cos - im * sin).to(tl.bfloat16))
    tl.store(y + at + 1, (re * sin + im * cos).to(tl.bfloat16))


@triton.jit
def softmax_kernel(near, far, selected, sink, psink, mass, T, N, H: tl.constexpr, W: tl.constexpr, NP: tl.constexpr, SCALE: tl.constexpr):
    """Scores to weights in place: near [R * H, 2 W], far [R * H, N]; psink [R, H]; mass [R, N] is the mean over the heads."""
    row = tl.program_id(0).to(tl.int64)
    t = (row % T).to(tl.int32)
    h = tl.arange(0, H)[:, None]
    j = tl.arange(0, 2 * W)[None]
    at = (t // W - 1) * W + j
    seen = (at >= 0) & (at <= t) & (at > t - W)
    pn = near + (row * H + h) * (2 * W) + j
    s = tl.where(seen, tl.load(pn).to(tl.float32) * SCALE, float("-inf"))
    top = tl.max(s, axis=1)
    if NP > 0:
        n = tl.arange(0, NP)
        chosen = (n < N) & (tl.load(selected + row * N + n, mask=n < N, other=0) != 0)
        pf = far + (row * H + h) * N + n[None]
        f = tl.load(pf, mask=(n < N)[None] & (h >= 0), other=0.0).to(tl.float32) * SCALE
        f = tl.where(chosen[None], f, float("-inf"))
        top = tl.maximum(top, tl.max(f, axis=1))
    p = tl.exp(s - top[:, None])
    last = tl.exp(tl.load(sink + tl.arange(0, H)) - top)
    total = tl.sum(p, axis=1) + last
    if NP > 0:
        q = tl.exp(f - top[:, None])
        total += tl.sum(q, axis=1)
        q = q / total[:, None]
        tl.store(pf, q.to(tl.bfloat16), mask=(n < N)[None] & (h >= 0))
        tl.store(mass + row * N + n, tl.sum(q, axis=0) / H, mask=n < N)
    tl.store(pn, (p / total[:, None]).to(tl.bfloat16))
    tl.store(psink + row * H + tl.arange(0, H), last / total)


@triton.jit
def softmax_back_kernel(near, far, dnear, dfar, psink, dsink, N, H: tl.constexpr, W: tl.constexpr, NP: tl.constexpr, SCALE: tl.constexpr):
    """Gradients of the weights to those of the scores, in place; dsink [R, H]."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, H)[:, None]
    j = tl.arange(0, 2 * W)[None]
    an = (row * H + h) * (2 * W) + j
    p = tl.load(near + an).to(tl.float32)
    dp = tl.load(dnear + an).to(tl.float32)
    delta = tl.sum(p * dp, axis=1)
    if NP > 0:
        n = tl.arange(0, NP)[None]
        af = (row * H + h) * N + n
        ok = (n < N) & (h >= 0)
        q = tl.load(far + af, mask=ok, other=0.0).to(tl.float32)
        dq = tl.load(dfar + af, mask=ok, other=0.0).to(tl.float32)
        delta += tl.sum(q * dq, axis=1)
        tl.store(dfar + af, (q * (dq - delta[:, None]) * SCALE).to(tl.bfloat16), mask=ok)
    tl.store(dnear + an, (p * (dp - delta[:, None]) * SCALE).to(tl.bfloat16))
    i = row * H + tl.arange(0, H)
    tl.store(dsink + i, -tl.load(psink + i) * delta)


@triton.jit
def order(v):
    """bf16-valued floats as integers of the same order, 0 to 65535."""
    b = v.to(tl.int32, bitcast=True) >> 16
    b = tl.where(b < 0, b + 65536, b)
    return tl.where(b >= 0x8000, 0xFFFF - b, b + 0x8000)


@triton.jit
def kth(key, k):
    """The largest threshold that at least k keys reach, by bisection."""
    low = 0
    for bit in tl.static_range(16):
        middle = low + (1 << (15 - bit))
        low = tl.where(tl.sum((key >= middle).to(tl.int32), axis=0) >= k, middle, low)
    return low


@triton.jit
def select_kernel(dot, weight, score, selected, candidates, dense, T, N, RATIO: tl.constexpr, K: tl.constexpr, BLOCKS: tl.constexpr,
                  SIZE: tl.constexpr, MODE: tl.constexpr, H: tl.constexpr, NP: tl.constexpr):
    """dot [R * H, N], weight [R, H] -> score [R, N], selected [R, N]. MODE 1 writes candidates [R, N], 2 reads them."""
    row = tl.program_id(0).to(tl.int64)
    visible = ((row % T).to(tl.int32) + 1) // RATIO
    n = tl.arange(0, NP)
    s = tl.zeros([NP], tl.float32)
    for h in tl.static_range(H):
        v = tl.load(dot + (row * H + h) * N + n, mask=n < N, other=0.0).to(tl.float32)
        s += (tl.maximum(v, 0.0) * tl.load(weight + row * H + h).to(tl.float32)).to(tl.bfloat16).to(tl.float32)
    s = s.to(tl.bfloat16).to(tl.float32)
    seen = n < visible
    tl.store(score + row * N + n, tl.where(seen, s, float("-inf")).to(tl.bfloat16), mask=n < N)
    key = tl.where(seen, order(s) + 1, 0)
    if MODE == 1:
        best = tl.max(tl.reshape(key, (NP // SIZE, SIZE)), axis=1)
        newest = (visible - 1) // SIZE
        best = tl.where((tl.arange(0, NP // SIZE) == newest) & (visible > 0), 0xFFFF, best)
        keep = (best >= kth(best, BLOCKS)) & (best > 0)
        spread = tl.broadcast_to(keep.to(tl.int8)[:, None], (NP // SIZE, SIZE))
        tl.store(candidates + row * N + n, tl.reshape(spread, (NP,)), mask=n < N)
    if MODE == 2:
        key = tl.where(tl.load(candidates + row * N + n, mask=n < N, other=0) != 0, key, 0)
    chosen = (key >= kth(key, K)) & (key > 0)
    chosen = chosen | (n < visible * tl.load(dense))  # 0 or 1
    tl.store(selected + row * N + n, chosen.to(tl.int8), mask=n < N)


@triton.jit
def index_loss_kernel(score, mass, selected, dot, weight, loss, ddot, dweight, N, GRADIENT: tl.constexpr, H: tl.constexpr, NP: tl.constexpr):
    """KL(mass || softmax of the selected scores) a row, or its gradient through score = sum of relu(dot) * weight."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, NP)
    ok = n < N
    chosen = tl.load(selected + row * N + n, mask=ok, other=0) != 0
    s = tl.where(chosen, tl.load(score + row * N + n, mask=ok, other=0.0).to(tl.float32), -1e9)
    m = tl.where(chosen, tl.load(mass + row * N + n, mask=ok, other=0.0), 0.0)
    p = m / (tl.sum(m, axis=0) + 1e-9)
    top = tl.max(s, axis=0)
    e = tl.where(chosen, tl.exp(s - top), 0.0)
    total = tl.sum(e, axis=0) + 1e-20
    if GRADIENT:
        some = tl.sum(p, axis=0)
        ds = tl.where(chosen, some * e / total - p, 0.0)
        for h in tl.static_range(H):
            v = tl.load(dot + (row * H + h) * N + n, mask=ok, other=0.0).to(tl.float32)
            w = tl.load(weight + row * H + h).to(tl.float32)
            tl.store(ddot + (row * H + h) * N + n, tl.where(v > 0, ds * w, 0.0).to(tl.bfloat16), mask=ok)
            tl.store(dweight + row * H + h, tl.sum(ds * tl.maximum(v, 0.0), axis=0))
    else:
        log_q = s - top - tl.log(total)
        tl.store(loss + row, tl.sum(tl.where(chosen, p * (tl.log(p + 1e-9) - log_q), 0.0), axis=0))
