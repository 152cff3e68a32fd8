#!/usr/bin/env python3
"""What PyTorch computes for a checkpoint, for measure.py to compare mdi with.

Usage: reference.py MODEL_DIR HELDOUT.jsonl[.xz] OUT_JSON [DEVICE]
Writes the bits of held-out texts, and greedy continuations of 20 prompts with the margin of each token over the second.
"""

import json
import lzma
import pathlib
import random
import sys

import tokenizers
import torch

import checkpoint
import config
import model
import tokenizer

SOURCES = ("sqlite", "postgresql", "python", "bible", "wordnet")  # what has whole documents held out
CONTEXT, NEW = 1024, 64


def documents(path):
    by_source = {}
    for line in lzma.open(path, "rt") if str(path).endswith(".xz") else open(path):
        d = json.loads(line)
        by_source.setdefault(d["source"], []).append(d)
    return by_source


def text_of(docs, limit):
    out = ""
    for d in docs:
        if len(out) >= limit:
            break
        out += d["text"] + "\n\n"
    return out[:limit]


def prompts(docs):
    """20: the first words of held-out documents of each kind, and questions as the chat format writes them."""
    rng, out = random.Random(3), []
    for source in SOURCES:
        for d in rng.sample([d for d in docs[source] if len(d["text"]) > 300], 3):
            out.append(" ".join(d["text"].split(" ")[:24]))
    for d in rng.sample(docs["wordnet-chat"], 4) + docs["bible-chat"][:1]:
        out.append(f"<｜begin▁of▁sentence｜><｜User｜>{d['turns'][0][0]}<｜Assistant｜></think>")
    return out


def bits(net, ids):
    """-log2 of the tokens behind the first one, in windows of CONTEXT."""
    total = 0.0
    for at in range(0, len(ids) - 1, CONTEXT):
        window = torch.tensor(ids[at : at + CONTEXT + 1], device=net.tables.plain.device)
        log_p = torch.log_softmax(net.logits(net.backbone(window[None, :-1], exact=True)[0])[0].double(), -1)
        total -= log_p.gather(1, window[1:, None]).sum().item() / 0.6931471805599453
    return total


def greedy(net, ids):
    """(continuation, margins): each token from a pass over everything before it."""
    ids, margins = list(ids), []
    for _ in range(NEW):
        x = net.backbone(torch.tensor([ids], device=net.tables.plain.device), exact=True)[0]
        top = net.logits(x[:, -1])[0].topk(2)
        ids.append(top.indices[0].item())
        margins.append(round((top.values[0] - top.values[1]).item(), 4))
    return ids[-NEW:], margins


@torch.no_grad()
def main():
    folder, device = pathlib.Path(sys.argv[1]), sys.argv[4] if len(sys.argv) > 4 else "cpu"
    torch.set_float32_matmul_precision("highest")
    t = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    c = config.load(folder / "config.json")
    weights = {n: w.to(device) for n, w in checkpoint.read(folder, c).items()}
    net = model.Net(c, weights, model.Tables(c, tokenizer.compressed_ids(t), 2048, device))
    docs, out = documents(sys.argv[2]), {"texts": [], "greedy": []}
    for source in SOURCES:
        text = text_of(docs[source], 8000)
        out["texts"].append({"source": source, "text": text, "bits": bits(net, [c.bos, *t.encode(text).ids])})
    for text in prompts(docs):
        ids, margins = greedy(net, t.encode(text).ids)
        out["greedy"].append({"prompt": text, "ids": ids, "margins": margins})
        pathlib.Path(sys.argv[3]).write_text(json.dumps(out, ensure_ascii=False))


if __name__ == "__main__":
    main()
