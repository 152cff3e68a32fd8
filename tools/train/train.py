#!/usr/bin/env python3
"""Trains the small model on one GPU within a given time, from the start or from its own saved state.

Usage: train.py --config CONFIG --tokenizer TOKENIZER --data TRAIN.jsonl[.xz] --heldout HELDOUT.jsonl[.xz] --out DIR
                [--resume STATE] --seconds S [--from P --to Q]

The schedule is a function of progress, 0 to 1 over all runs: a run moves from P to Q in its S seconds. It leaves in DIR
model.safetensors (the checkpoint), state.pt (to resume from: weights of 2 bytes, experts of 1) and log.jsonl. The optimiser
starts anew in each run, with a short warm-up.
"""

import argparse
import json
import math
import pathlib
import time

import tokenizers
import torch
import torch.nn.functional as F

import checkpoint
import config
import data
import model
import quant
import sinkhorn
import tokenizer
from muon import Optimizer


def save_state(path, weights):
    out = {}
    for n, w in weights.items():
        if model.storage(n) == "fp4":
            t = w.detach().unflatten(-1, (-1, 32))
            s = quant.power_of_two(t.abs().amax(-1, keepdim=True).clamp(min=2.0**-100), quant.INV_448)
            out[n] = ((t / s).clamp(-448, 448).to(torch.float8_e4m3fn).cpu(), s.bfloat16().cpu())
        else:
            out[n] = w.detach().float().cpu() if n.endswith("gate.bias") else w.detach().bfloat16().cpu()
    torch.save(out, path)


def load_state(path, device):
    out = {}
    for n, w in torch.load(path, map_location="cpu").items():
        out[n] = ((w[0].float() * w[1].float()).flatten(-2) if isinstance(w, tuple) else w.float()).to(device)
    return out


def head_loss(x, head, targets):
    """Mean cross entropy, and the logits."""
    logits = F.linear(x.float(), head)
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten()), logits


def draft_loss(net, main_hidden, ids, at, logits):
    """(distillation loss by place, confidence loss, expected acceptance by place, loads)."""
    block = net.c.dspark_block_size
    z, x, counts = net.drafts(main_hidden.detach(), ids, at)
    places = at[..., None] + 1 + torch.arange(block, device=at.device)  # rows of the trunk that predict the same tokens
    before = torch.gather(ids, 1, places.flatten(1)).unflatten(1, places.shape[1:])
    e, bigram = net.markov(before)
    base = F.linear(x.float(), net.w["head"].detach())
    log_q = torch.log_softmax(base + bigram, -1)
    teacher = torch.gather(logits.detach(), 1, places.flatten(1)[..., None].expand(-1, -1, logits.shape[-1]))
    p = torch.softmax(teacher.unflatten(1, places.shape[1:]), -1)
    loss = -(p * log_q).sum(-1)
    accepted = torch.minimum(p, log_q.detach().exp()).sum(-1)
    confidence = net.confidence(z.detach(), e.detach())
    judged = F.binary_cross_entropy_with_logits(confidence, accepted)
    return loss.mean((0, 1)), judged, accepted.mean((0, 1)), counts


def balance(weights, counts, rate):
    """Moves the router biases towards equal loads; the bias has no gradient."""
    for prefix, n in counts.items():
        weights[prefix + "ffn.gate.bias"] += rate * torch.sign(n.mean() - n)


def schedule(progress):
    """Multiplier of the rates: up in the first 1%, flat, and down to 2% over the last 45%."""
    if progress < 0.01:
        return progress / 0.01
    return 1.0 if progress < 0.55 else 0.02 + 0.98 * (1 - progress) / 0.45


@torch.no_grad()
def bits_per_byte(net, documents, text_of, length, limit):
    """Over whole documents packed into windows; tokens other than text count no bytes."""
    totals = {}
    for source, ids in documents:
        totals.setdefault(source, []).append(torch.from_numpy(ids.astype("int64")))
    result, device = {}, net.tables.plain.device
    for source, parts in totals.items():
        stream = torch.cat(parts)[: limit + 1]
        n = (len(stream) - 1) // length
        if n == 0:
            continue
        rows = stream[: n * length + 1].to(device)
        sizes = text_of.to(device)[rows[1:]].sum().item()
        bits = 0.0
        for at in range(0, n, 16):
            ids = torch.stack([rows[i * length : (i + 1) * length] for i in range(at, min(at + 16, n))])
            want = torch.stack([rows[i * length + 1 : (i + 1) * length + 1] for i in range(at, min(at + 16, n))])
            logits = net.logits(net.backbone(ids, exact=True)[0])
            bits += F.cross_entropy(logits.flatten(0, 1), want.flatten(), reduction="sum").item() / math.log(2)
        result[source] = (bits / sizes, sizes)
    return result


def main():
    parser = argparse.ArgumentParser()
    for name in ("config", "tokenizer", "data", "heldout", "out"):
        parser.add_argument("--" + name, required=True, type=pathlib.Path)
    parser.add_argument("--resume", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--from", dest="first", type=float, default=0.0)
    parser.add_argument("--to", dest="last", type=float, default=1.0)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--anchors", type=int, default=32)
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=0.002)
    parser.add_argument("--dense-until", type=float, default=0.1, help="progress before which every visible row is attended to")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--eval-tokens", type=int, default=65536)
    o = parser.parse_args()

    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64
    o.out.mkdir(parents=True, exist_ok=True)
    log = open(o.out / "log.jsonl", "a")

    def say(**entry):
        line = json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in entry.items()})
        print(line, flush=True)
        log.write(line + "\n")
        log.flush()

    begun = time.time()
    if o.device == "cuda":
        say(event="sinkhorn", kernel=sinkhorn.check_triton(o.device))
    c = config.load(o.config)
    t = tokenizers.Tokenizer.from_file(str(o.tokenizer))
    tables = model.Tables(c, tokenizer.compressed_ids(t), max(o.length, 2048), o.device)
    weights = load_state(o.resume, o.device) if o.resume else model.initial(c, o.seed, o.device)
    for n, w in weights.items():
        w.requires_grad_(not n.endswith("gate.bias"))
    compiled = (lambda f: f) if o.no_compile else (lambda f: torch.compile(f, dynamic=False))
    net = model.Net(c, weights, tables, compiled)
    loss_of_head = compiled(head_loss)
    documents = data.load(o.data, o.tokenizer)
    held = data.load(o.heldout, o.tokenizer)
    say(event="data", seconds=time.time() - begun, tokens=sum(len(d) for _, d in documents), parameters=sum(w.numel() for w in weights.values()))

    optimizer = Optimizer(weights)
    batches = data.epochs(documents, o.length, o.batch, o.seed + int(o.first * 1000), o.device)
    start, steps, tokens, since = None, 0, 0, time.time()
    while True:
        # The clock starts behind the first steps, which compile.
        if steps == 4:
            torch.cuda.synchronize() if o.device == "cuda" else None
            start = since = time.time()
            say(event="compiled", seconds=start - begun)
        progress = o.first + (o.last - o.first) * (0 if start is None else (time.time() - start) / o.seconds)
        if progress >= o.last:
            break
        if o.profile and steps == 30:
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            profiler.start()
        if o.profile and steps == 33:
            torch.cuda.synchronize()
            profiler.stop()
            rows = sorted(profiler.key_averages(), key=lambda e: -e.self_device_time_total)
            (o.out / "profile.txt").write_text("".join(f"{e.self_device_time_total / 3e3:9.3f} ms a step, {e.count // 3:5} calls  {e.key[:150]}\n" for e in rows[:80]))
        ids = next(batches)
        net.refresh()
        dense = torch.tensor([float(progress < o.dense_until)], device=o.device)
        x, main_hidden, counts, index_loss = net.backbone(ids[:, :-1], dense)
        loss, logits = loss_of_head(x, net.w["head"], ids[:, 1:])
        spacing = (o.length - 8) // o.anchors
        at = torch.arange(o.anchors, device=o.device) * spacing + torch.randint(0, spacing, (o.batch, 1), device=o.device)
        drafted, judged, accepted, draft_counts = draft_loss(net, main_hidden, ids[:, :-1], at, logits)
        (loss + index_loss + drafted.mean() + judged).backward()
        rate = schedule(progress) * min(1.0, (steps + 1) / 50)
        optimizer.step(o.muon_rate * rate, o.adam_rate * rate)
        balance(weights, {**counts, **draft_counts}, 1e-3 * min(1.0, 5 * rate))
        steps += 1
        tokens += ids.numel() - o.batch
        if steps % o.log_every == 0 or steps < 4:
            now = time.time()
            load = counts["layers.3."]
            say(step=steps, progress=progress, loss=loss.item(), index=index_loss.item(), draft=[round(v, 3) for v in drafted.tolist()],
                accepted=[round(v, 3) for v in accepted.tolist()], judged=judged.item(), rate=rate, dense=dense.item() > 0,
                load_max=(load.max() / load.mean()).item(), load_min=(load.min() / load.mean()).item(),
                tokens_per_second=0.0 if start is None else (tokens / max(now - since, 1e-9) if steps > o.log_every else 0.0))
            if start is not None:
                since, tokens = now, 0
            if not math.isfinite(loss.item()):
                raise SystemExit("the loss is not finite")
    say(event="trained", steps=steps, seconds=time.time() - begun,
        memory_gb=torch.cuda.max_memory_allocated() / 1e9 if o.device == "cuda" else 0.0)
    save_state(o.out / "state.pt", weights)
    checkpoint.write(o.out / "model.safetensors", weights)
    sizes = torch.tensor([0 if i < len(tokenizer.MARKERS) else len(t.id_to_token(i)) for i in range(t.get_vocab_size())])
    say(event="held out", bits_per_byte={k: [round(v[0], 4), v[1]] for k, v in bits_per_byte(model.Net(c, weights, tables), held, sizes, o.length, o.eval_tokens).items()})


if __name__ == "__main__":
    main()
