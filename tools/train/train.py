#!/usr/bin/env python3
"""Trains the small model on one GPU within a given time, from the start or from its own saved state.

Usage: train.py --config CONFIG --tokenizer TOKENIZER --data TRAIN.jsonl[.xz] --heldout HELDOUT.jsonl[.xz] --out DIR --deadline S
                [--resume DIR] [--from P --to Q]

The schedule is a function of progress, 0 to 1 over all runs: a run moves from P to Q until S seconds after its start, less what
exporting takes. It leaves in DIR model.safetensors (the checkpoint), state-*.pt (to resume from: weights of 2 bytes, experts of
1; also written every minute) and log.jsonl. The optimiser starts anew in each run, with a short warm-up. Nothing is compiled but
the kernels of kernels.py, which are compared with PyTorch first; where they fail, plain PyTorch is used.
"""

import argparse
import concurrent.futures
import json
import math
import multiprocessing
import pathlib
import time

import numpy as np
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


def save_state(folder, weights):
    experts, rest = {}, {}
    for n, w in weights.items():
        if model.storage(n) == "fp4":
            t = w.detach().unflatten(-1, (-1, 32))
            s = quant.power_of_two(t.abs().amax(-1, keepdim=True).clamp(min=2.0**-100), quant.INV_448)
            experts[n] = ((t / s).clamp(-448, 448).to(torch.float8_e4m3fn).cpu(), s.bfloat16().cpu())
        else:
            rest[n] = w.detach().float().cpu() if n.endswith("gate.bias") else w.detach().bfloat16().cpu()
    for name, part in (("experts", experts), ("rest", rest)):
        torch.save(part, folder / "new.pt")
        (folder / "new.pt").replace(folder / f"state-{name}.pt")


def load_state(folder, device):
    out = {}
    for name in ("experts", "rest"):
        for n, w in torch.load(folder / f"state-{name}.pt", map_location="cpu").items():
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
def bits_per_byte(net, held, text_of, length, limit):
    """By source, over documents packed into windows; tokens other than text count no bytes."""
    sources, tokens, begins = held
    result, device = {}, net.tables.plain.device
    for source in dict.fromkeys(sources):
        parts = [tokens[begins[i] : begins[i + 1]] for i, s in enumerate(sources) if s == source]
        stream = torch.from_numpy(np.concatenate(parts).astype("int64")[: limit + 1]).to(device)
        n = (len(stream) - 1) // length
        if n == 0:
            continue
        bits = 0.0
        for at in range(0, n, 16):
            several = stream[at * length : min(at + 16, n) * length + 1]
            logits = net.logits(net.backbone(several[:-1].view(-1, length), exact=True)[0])
            bits += F.cross_entropy(logits.flatten(0, 1), several[1:], reduction="sum").item() / math.log(2)
        size = text_of[stream[1 : n * length + 1]].sum().item()
        result[source] = (round(bits / size, 4), size)
    return result


class Inputs:
    """What changes from step to step, in tensors that stay where they are."""

    def __init__(self, o, batch):
        self.o, self.batch = o, batch
        self.ids = torch.zeros(batch, o.length + 1, dtype=torch.long, device=o.device)
        self.at = torch.zeros(batch, o.anchors, dtype=torch.long, device=o.device)
        self.dense = torch.zeros(1, dtype=torch.int32, device=o.device)
        self.rates = torch.zeros(3, device=o.device)  # Muon, Adam, router bias

    def set(self, batches, dense, rate):
        o = self.o
        self.ids.copy_(next(batches))
        spacing = (o.length - 8) // o.anchors
        self.at.copy_(torch.arange(o.anchors, device=o.device) * spacing + torch.randint(0, spacing, (self.batch, 1), device=o.device))
        self.dense.fill_(int(dense))
        for i, r in enumerate((o.muon_rate * rate, o.adam_rate * rate, 1e-3 * min(1.0, 5 * rate))):
            self.rates[i].fill_(r)


def train_step(net, optimizer, inputs):
    """One step; the losses as tensors, so that nothing waits for the GPU."""
    net.refresh()
    ids = inputs.ids
    x, main_hidden, counts, index_loss = net.backbone(ids[:, :-1], inputs.dense)
    loss, logits = head_loss(x, net.w["head"], ids[:, 1:])
    drafted, judged, accepted, draft_counts = draft_loss(net, main_hidden, ids[:, :-1], inputs.at, logits)
    (loss + index_loss + drafted.mean() + judged).backward()
    optimizer.step(inputs.rates[0], inputs.rates[1])
    with torch.no_grad():
        balance(net.parameters, {**counts, **draft_counts}, inputs.rates[2])
    net.release()
    return dict(loss=loss.detach(), index=index_loss.detach(), draft=drafted.detach(), accepted=accepted, judged=judged.detach(), load=counts["layers.3."])


def captured(step, warm):
    """(replay of the step, its losses) as one CUDA graph. The steps run so far, but for `warm` more, were eager ones."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        losses = step()

    def replay():
        graph.replay()
        return losses

    return replay


def options():
    parser = argparse.ArgumentParser()
    for name in ("config", "tokenizer", "data", "heldout", "out"):
        parser.add_argument("--" + name, required=True, type=pathlib.Path)
    parser.add_argument("--resume", type=pathlib.Path)
    parser.add_argument("--deadline", type=float, required=True)
    parser.add_argument("--reserve", type=float, default=20, help="seconds of the deadline for the export and the held-out text")
    parser.add_argument("--from", dest="first", type=float, default=0.0)
    parser.add_argument("--to", dest="last", type=float, default=1.0)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--anchors", type=int, default=48)
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=0.002)
    parser.add_argument("--dense-until", type=float, default=0.1, help="progress before which every visible row is attended to")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--plain", action="store_true", help="without the kernels")
    parser.add_argument("--eager", action="store_true", help="do not capture the step in a CUDA graph")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--eval-tokens", type=int, default=32768)
    return parser.parse_args()


def fast_parts(o, c, say):
    """fast.py where its kernels run and agree with PyTorch, else None."""
    if o.plain or o.device == "cpu":
        return None
    try:
        import check_fast
        import fast

        failed = check_fast.check(c, o.device, t=o.length)
        say(event="kernels", failed=failed)
        return None if failed else fast
    except Exception as error:  # whatever a compiler that is not ours throws
        say(event="kernels", error=str(error)[:2000])
        return None


def profiled(step, path):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    rows = sorted(profiler.key_averages(), key=lambda e: -e.self_device_time_total)
    path.write_text("".join(f"{e.self_device_time_total / 3e3:9.3f} ms a step, {e.count // 3:5} calls  {e.key[:150]}\n" for e in rows[:90]))


def main():
    o, begun = options(), time.time()
    torch.set_float32_matmul_precision("high")
    o.out.mkdir(parents=True, exist_ok=True)
    log = open(o.out / "log.jsonl", "a")

    def say(**entry):
        line = json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in {"at": time.time() - begun, **entry}.items()})
        print(line, flush=True)
        log.write(line + "\n")
        log.flush()

    # Another process reads the text while this one prepares the GPU.
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        coming, coming_held = (pool.submit(data.load, path, o.tokenizer) for path in (o.data, o.heldout))
        c = config.load(o.config)
        t = tokenizers.Tokenizer.from_file(str(o.tokenizer))
        tables = model.Tables(c, tokenizer.compressed_ids(t), max(o.length, 2048), o.device)
        weights = load_state(o.resume, o.device) if o.resume else model.initial(c, o.seed, o.device)
        if o.device == "cuda":
            say(event="sinkhorn", kernel=sinkhorn.check_triton(o.device))
        parts = fast_parts(o, c, say)
        (_, tokens, begins), held = coming.result(), coming_held.result()
    for n, w in weights.items():
        w.requires_grad_(not n.endswith("gate.bias"))
    net = model.Net(c, weights, tables, parts)
    optimizer = Optimizer(weights)
    say(event="data", tokens=len(tokens), parameters=sum(w.numel() for w in weights.values()))

    def stream(batch):
        return data.epochs(tokens, begins, o.length, batch, o.seed + int(o.first * 1000), o.device)

    inputs, batches = Inputs(o, o.batch), stream(o.batch)

    def eager():
        return train_step(net, optimizer, inputs)

    step, start, steps, done, end = eager, None, 0, 0, begun + o.deadline - o.reserve
    since = saved = time.time()
    while True:
        if steps == 4:  # the clock starts behind the first steps, which compile kernels, and behind the capture
            if parts is not None and not o.eager:
                try:
                    step = captured(eager, 2)
                    say(event="captured")
                except Exception as error:  # a step that cannot be captured runs as it did, with more tokens a launch
                    say(event="not captured", error=str(error)[:2000])
                    torch.cuda.synchronize()
                    for w in weights.values():
                        w.grad = None
                    inputs = Inputs(o, o.batch * 3)
                    batches = stream(inputs.batch)
            start = since = saved = time.time()
            done = 0
        progress = o.first + (0 if start is None else (o.last - o.first) * (time.time() - start) / (end - start))
        if progress >= o.last or time.time() > end:
            break
        rate, dense = schedule(progress) * min(1.0, (steps + 1) / 50), progress < o.dense_until
        inputs.set(batches, dense, rate)
        losses = step()
        steps += 1
        done += inputs.batch * o.length
        if o.profile and steps == 30:
            profiled(step, o.out / "profile.txt")
        if steps % o.log_every == 0 or steps < 4 or steps == 24:
            v = {k: [round(x, 3) for x in w.tolist()] if w.dim() else w.item() for k, w in losses.items() if k != "load"}
            now, load = time.time(), losses["load"]
            say(step=steps, progress=progress, **v, rate=rate, dense=dense, load_max=(load.max() / load.mean()).item(),
                load_min=(load.min() / load.mean()).item(), tokens_per_second=round(done / max(now - since, 1e-9)))
            since, done = now, 0
            if not math.isfinite(v["loss"]):
                raise SystemExit("the loss is not finite")
        elif steps % 8 == 0 and o.device == "cuda":
            torch.cuda.synchronize()  # the host must not run ahead of the clock
        if time.time() - saved > 60:
            save_state(o.out, weights)
            saved = time.time()
    say(event="trained", steps=steps, memory_gb=torch.cuda.max_memory_allocated() / 1e9 if o.device == "cuda" else 0.0)
    save_state(o.out, weights)
    checkpoint.write(o.out / "model.safetensors", weights)
    sizes = torch.tensor([0 if i < len(tokenizer.MARKERS) else len(t.id_to_token(i)) for i in range(t.get_vocab_size())], device=o.device)
    say(event="held out", bits_per_byte=bits_per_byte(model.Net(c, weights, tables), held, sizes, o.length, o.eval_tokens))


if __name__ == "__main__":
    main()
