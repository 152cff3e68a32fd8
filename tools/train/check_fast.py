#!/usr/bin/env python3
"""Compares fast.py with layers.py, values and gradients, on a small random case. Usage: check_fast.py CONFIG [DEVICE]

On a CPU set TRITON_INTERPRET=1. Exit code 1 when a part differs by more than rounding explains.
"""

import sys

import torch

import config
import fast
import layers as L
import model

# A value on the FP8 grid that falls to the other side differs by 1/16; a wrong formula differs by 1e-1 and more.
LIMIT = 5e-2


def relative(a, b):
    return ((a.float() - b.float()).norm() / (b.float().norm() + 1e-12)).item()


def compare(name, ours, theirs, inputs, limit, failures):
    """Both functions on the same inputs; gradients of a random projection of the outputs."""
    results = []
    for f in (ours, theirs):
        leaves = [v.detach().clone().requires_grad_(v.is_floating_point()) for v in inputs]
        outputs = [o for o in f(*leaves) if o is not None]
        g = torch.Generator(device=inputs[0].device).manual_seed(3)
        total = sum((o.float() * torch.randn(o.shape, generator=g, device=o.device)).sum() for o in outputs if o.requires_grad)
        grads = torch.autograd.grad(total, [v for v in leaves if v.requires_grad], allow_unused=True)
        results.append((outputs, grads))
    values = [relative(a, b) for a, b in zip(results[0][0], results[1][0])]
    grads = [relative(a, b) for a, b in zip(results[0][1], results[1][1]) if a is not None and b is not None]
    bad = max(values + grads) > limit
    print(f"{'FAIL' if bad else 'ok':5}{name:24} values", *(f"{v:.1e}" for v in values), " gradients", *(f"{v:.1e}" for v in grads), flush=True)
    failures += [name] * bad


def check(c, device, t=256, b=1):
    failures = []
    g = torch.Generator().manual_seed(1)

    def rand(*shape, scale=1.0, dtype=torch.bfloat16):
        return (torch.randn(*shape, generator=g) * scale).to(dtype).to(device)

    import quant
    import sinkhorn

    d, hd, heads, n = c.hidden_size, c.head_dim, c.num_attention_heads, c.n_routed_experts
    h, y = rand(b, t, 4, d), rand(b, t, d)
    mix = lambda *s: torch.rand(*s, generator=g).to(device)
    compare("quant", lambda x: (fast.Quant.apply(x),), lambda x: (quant.act_fp8(x),), [rand(64, d, scale=3)], 1e-3, failures)
    compare("post", lambda *a: (fast.Post.apply(*a),), lambda *a: (L.hc_post(*a),), [y, h, mix(b, t, 4), mix(b, t, 4, 4)], LIMIT, failures)

    def pre_reference(h, a, w):
        x = L.rms_norm(L.hc_pre(h, a), w)
        return x, quant.act_fp8(x), torch.rsqrt(h.float().flatten(-2).square().mean(-1) + 1e-20)

    compare("pre", fast.Pre.apply, pre_reference, [h, mix(b, t, 4), 1 + rand(d, scale=0.2, dtype=torch.float32)], LIMIT, failures)
    table = model.Tables(c, list(range(c.vocab_size)), t, device).compressed
    compare("rope", lambda x: (fast.Rope.apply(x, table, True),), lambda x: (L.rope(x, table[:, None], True),), [rand(b, t, heads, hd)], LIMIT, failures)
    inter = c.moe_intermediate_size

    def swiglu_reference(gu, weight):
        a, u = gu.unflatten(-1, (2, n, inter)).unbind(1)
        return (quant.act_fp8((L.swiglu(a, u, 10.0) * weight[..., None]).to(torch.bfloat16).flatten(1)),)

    compare("swiglu", lambda gu, w: (fast.Swiglu.apply(gu, w, n, inter, 10.0),), swiglu_reference, [rand(40, 2 * n * inter, scale=2), mix(40, n)], LIMIT, failures)
    q, kv, sink = rand(b, t, heads, hd), rand(b, t, hd), rand(heads, dtype=torch.float32)
    compare("window attention", lambda q, kv, s: fast.Attend.apply(q, kv, None, None, s, c.sliding_window)[:1],
            lambda q, kv, s: L.attend(q, kv, None, None, s, c.sliding_window, False)[:1], [q, kv, sink], LIMIT, failures)
    for ratio in (1, 2):
        rows = rand(b, t // ratio, hd)
        selected = (torch.rand(b, t, t // ratio, generator=g).to(device) < 0.4) & L.visible_rows(t, t // ratio, ratio, device)
        compare(f"attention, ratio {ratio}", lambda q, kv, r, s: fast.Attend.apply(q, kv, r, selected.to(torch.int8), s, c.sliding_window),
                lambda q, kv, r, s: L.attend(q, kv, r, selected, s, c.sliding_window, False), [q, kv, rows, sink], LIMIT, failures)
    ih = c.index_n_heads
    for layer in c.index_source_layer_ids:
        k = config.kind(c, layer)
        nr = t // k.ratio
        dot, weight = rand(b, t * ih, nr), rand(b, t, ih, scale=0.3)
        visible = L.visible_rows(t, nr, k.ratio, device)
        given = (torch.rand(b * t, nr, generator=g) < 0.5).to(torch.int8).to(device)
        small = type("C", (), {**vars(c), "index_topk": 16, "candidate_topk_blocks": 5})
        for dense in (0, 1):
            score, selected, candidates = fast.select(dot, weight, k, small, given, torch.tensor([dense], device=device, dtype=torch.int32), t)
            u = (dot.unflatten(1, (t, ih)).clamp(min=0) * weight[..., None]).float().sum(2).to(torch.bfloat16).masked_fill(~visible, float("-inf"))
            want = L.candidate_mask(u, visible, k.ratio, 5, c.candidate_block_size, False) if k.candidate_source else given.view(b, t, nr) != 0
            limited = u.masked_fill(~want, float("-inf")) if k.filtered else u
            chosen = L.top_mask(limited, 16, False) | (visible & (dense > 0))
            wrong = (selected.view_as(chosen).bool() != chosen).float().mean().item()
            if k.candidate_source:
                wrong += ((candidates.view_as(want).bool() & visible) != (want & visible)).float().mean().item()
            print(f"{'FAIL' if wrong > 2e-2 else 'ok':5}selection of layer {layer}, dense {dense}: {wrong:.1e} differ", flush=True)
            failures += [f"select {layer}"] * (wrong > 2e-2)
        mass = torch.rand(b, t, nr, generator=g).to(device)
        s = selected

        def loss_reference(dot, weight):
            score = (dot.unflatten(1, (t, ih)).clamp(min=0) * weight[..., None]).float().sum(2)
            return (model.kl(score, mass * s.view_as(mass), s.view_as(mass).bool()) ,)

        compare(f"index loss of layer {layer}", lambda dot, w: (fast.IndexLoss.apply(dot, w, score, mass.flatten(0, 1), s),), loss_reference, [dot, weight], LIMIT, failures)
    return failures


if __name__ == "__main__":
    failed = check(config.load(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cpu")
    sys.exit(1 if failed else 0)
