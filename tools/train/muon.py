"""Muon for the matrices of the layers, Adam for the rest; both in fp32 over the parameters of one dictionary."""

import collections

import torch

# Adam: tables, vectors, and the small matrices whose rows are scores.
ADAM = ("embed", "head", "norm", "gate.weight", "q_weight", "k_weight", "_fn", "_base", "_scale", "attn_sink", "weights_proj",
        "confidence_head.proj")
RATE = {"attn_sink": 5.0, "engram.embed": 2.0, "embed": 2.0, "markov_head.embed": 2.0}  # relative to Adam's base rate


def uses_adam(name):
    return name.endswith(ADAM)


@torch.no_grad()
def orthogonal(g):
    """Newton-Schulz iteration towards the nearest orthogonal matrix, batched; bf16."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).float()


class Optimizer:
    def __init__(self, weights, skip=("gate.bias",)):
        names = [n for n in weights if not n.endswith(skip)]
        self.weights = weights
        self.names = names
        self.adam = collections.defaultdict(list)
        self.matrices = collections.defaultdict(list)
        for n in names:
            if uses_adam(n):
                self.adam[next((r for s, r in RATE.items() if n.endswith(s)), 1.0)].append(n)
            else:
                self.matrices[tuple(weights[n].shape[-2:])].append(n)
        self.m = {n: torch.zeros_like(weights[n]) for n in names}
        self.v = {n: torch.zeros_like(weights[n]) for n in names if uses_adam(n)}
        # The powers of the betas live on the device, and so do the rates: a step can be captured in a graph.
        self.powers = torch.ones(2, device=weights[names[0]].device)

    @torch.no_grad()
    def step(self, muon_rate, adam_rate, momentum=0.95, betas=(0.9, 0.95)):
        """The rates are tensors of one value."""
        self.powers[0] *= betas[0]
        self.powers[1] *= betas[1]
        unbiased = 1 - self.powers
        for factor, names in self.adam.items():
            w, g = [self.weights[n] for n in names], [self.weights[n].grad for n in names]
            m, v = [self.m[n] for n in names], [self.v[n] for n in names]
            torch._foreach_lerp_(m, g, 1 - betas[0])
            torch._foreach_mul_(v, betas[1])
            torch._foreach_addcmul_(v, g, g, 1 - betas[1])
            d = torch._foreach_sqrt(torch._foreach_div(v, unbiased[1]))
            torch._foreach_add_(d, 1e-10)
            update = torch._foreach_div(m, d)
            torch._foreach_mul_(update, adam_rate * factor / unbiased[0])
            torch._foreach_sub_(w, update)
        for shape, names in self.matrices.items():
            m, g = [self.m[n] for n in names], [self.weights[n].grad for n in names]
            torch._foreach_lerp_(m, g, 1 - momentum)
            looked_ahead = torch._foreach_lerp(g, m, momentum)
            flat = torch.cat([u.reshape(-1, *shape) for u in looked_ahead])
            update = orthogonal(flat) * (muon_rate * max(1.0, shape[0] / shape[1]) ** 0.5)
            parts = update.split([u.numel() // (shape[0] * shape[1]) for u in looked_ahead])
            torch._foreach_sub_([self.weights[n] for n in names], [p.reshape(self.weights[n].shape) for p, n in zip(parts, names)])
        for n in self.names:
            self.weights[n].grad = None
