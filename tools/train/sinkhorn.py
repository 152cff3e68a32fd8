"""The doubly stochastic mix of the hyper-connections (spec model.md 5.3): softmax of the rows, then 20 rounds of dividing the
columns and rows by their sums.

In training, the rounds run without a gradient, and two more with one from where they ended: near the fixed point that is
the gradient of the whole, and the values differ by less than 1e-5.
"""

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU-only installations
    triton = None

EPS = 1e-6
ROUNDS = 20


def rounds(c):
    """Columns first; then rows and columns, 19 times. [..., 4, 4] fp32, after the softmax."""
    c = c / (c.sum(-2, keepdim=True) + EPS)
    for _ in range(ROUNDS - 1):
        c = c / (c.sum(-1, keepdim=True) + EPS)
        c = c / (c.sum(-2, keepdim=True) + EPS)
    return c


if triton is not None:

    @triton.jit
    def _kernel(source, target, count, ROUNDS: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr):
        t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        i = tl.arange(0, 4)
        at = t[:, None, None] * 16 + i[None, :, None] * 4 + i[None, None, :]
        inside = (t < count)[:, None, None]
        c = tl.load(source + at, mask=inside, other=1.0)
        c = c / (tl.sum(c, axis=1)[:, None, :] + EPS)
        for _ in range(ROUNDS - 1):
            c = c / (tl.sum(c, axis=2)[:, :, None] + EPS)
            c = c / (tl.sum(c, axis=1)[:, None, :] + EPS)
        tl.store(target + at, c, mask=inside)


use_triton = triton is not None


def check_triton(device):
    """Falls back to PyTorch where the kernel does not run or does not agree. True: the kernel is used."""
    global use_triton
    c = torch.softmax(torch.randn(1000, 4, 4, device=device), -1) + EPS
    try:
        use_triton = bool((sinkhorn_rounds(c) - rounds(c)).abs().max() < 1e-5)
    except Exception as error:  # any failure of a compiler that is not ours
        print("sinkhorn kernel:", error)
        use_triton = False
    return use_triton


@torch.library.custom_op("mdi::sinkhorn_rounds", mutates_args=())
def sinkhorn_rounds(c: torch.Tensor) -> torch.Tensor:
    if not c.is_cuda or not use_triton:
        return rounds(c)
    c = c.contiguous()
    out = torch.empty_like(c)
    count = c.numel() // 16
    block = 128
    _kernel[(triton.cdiv(count, block),)](c, out, count, ROUNDS=ROUNDS, EPS=EPS, BLOCK=block, num_warps=4)
    return out


@sinkhorn_rounds.register_fake
def _(c):
    return torch.empty(c.shape, dtype=c.dtype, device=c.device)


def sinkhorn(logits, exact):
    k = torch.softmax(logits, -1) + EPS
    done = sinkhorn_rounds(k.detach())
    if exact:
        return done
    c = k * (done / k.detach())
    for _ in range(2):
        c = c / (c.sum(-1, keepdim=True) + EPS)
        c = c / (c.sum(-2, keepdim=True) + EPS)
    return c
