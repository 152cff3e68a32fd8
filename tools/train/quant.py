"""The number formats of the released checkpoint as fake quantisation (spec model.md 3).

Every function returns values on the format's grid in the input's dtype, and passes the gradient straight through: what is
trained is what is exported.
"""

import torch

INV_448 = torch.tensor(0x3B124925, dtype=torch.int32).view(torch.float32).item()
INV_6 = torch.tensor(0x3E2AAAAB, dtype=torch.int32).view(torch.float32).item()


def power_of_two(largest, inverse_limit):
    """The smallest power of two >= largest / limit, from the bits of the quotient (3.3)."""
    bits = (largest * inverse_limit).view(torch.int32)
    exponent = ((bits >> 23) & 255) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def e4m3(x):
    return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).to(torch.float32)


def e2m1(x):
    """Nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6; ties to the even code."""
    a = x.abs().clamp(max=6.0)
    q = torch.where(a < 2.0, torch.round(a * 2.0) * 0.5, torch.where(a < 4.0, torch.round(a), torch.round(a * 0.5) * 2.0))
    return torch.copysign(q, x)


def _blocks(x, size):
    return x.float().unflatten(-1, (-1, size))


class _Straight(torch.autograd.Function):
    """Forward: the quantised value. Backward: the identity."""

    @staticmethod
    def forward(ctx, x, quantise):
        return quantise(x)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def _act_fp8(x):
    b = _blocks(x, 32)
    s = power_of_two(b.abs().amax(-1, keepdim=True).clamp(min=1e-4), INV_448)
    return (e4m3(b / s) * s).flatten(-2).to(x.dtype)


def _act_fp4_index(x):
    b = _blocks(x, 32)
    s = power_of_two(b.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126), INV_6)
    return (e2m1(b / s) * s).flatten(-2).to(x.dtype)


def _act_fp4_cache(x):
    b = _blocks(x, 16)
    s = e4m3(b.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-9) / 6.0)
    return (e2m1(b / s) * s).flatten(-2).to(x.dtype)


def tile_scale(w):
    """One scale for each 32x32 tile of [..., out, in], shaped to multiply w.unflatten into tiles."""
    t = w.unflatten(-1, (-1, 32)).unflatten(-3, (-1, 32))  # [..., o, 32, i, 32]
    return t, power_of_two(t.abs().amax((-3, -1), keepdim=True).clamp(min=2.0**-100), INV_448)


def row_scale(w):
    """One scale for each row and 32 columns."""
    t = w.unflatten(-1, (-1, 32))
    return t, power_of_two(t.abs().amax(-1, keepdim=True).clamp(min=2.0**-100), INV_6)


def _weight_fp8(w):
    t, s = tile_scale(w)
    return (e4m3(t / s) * s).flatten(-4, -3).flatten(-2)


def _weight_fp4(w):
    t, s = row_scale(w)
    return (e2m1(t / s) * s).flatten(-2)


def _row_fp8(w):
    """Engram rows: e4m3 with a scale for each row and 32 columns."""
    b = w.unflatten(-1, (-1, 32))
    s = power_of_two(b.abs().amax(-1, keepdim=True).clamp(min=2.0**-100), INV_448)
    return (e4m3(b / s) * s).flatten(-2)


def _bf16(w):
    return w.to(torch.bfloat16).to(w.dtype)


def act_fp8(x):
    return _Straight.apply(x, _act_fp8)


def act_fp4_index(x):
    return _Straight.apply(x, _act_fp4_index)


def act_fp4_cache(x):
    return _Straight.apply(x, _act_fp4_cache)


def weight_fp8(w):
    return _Straight.apply(w, _weight_fp8)


def weight_fp4(w):
    return _Straight.apply(w, _weight_fp4)


def weight_row_fp8(w):
    return _Straight.apply(w, _row_fp8)


def weight_bf16(w):
    return _Straight.apply(w, _bf16)
