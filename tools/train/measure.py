#!/usr/bin/env python3
"""Measures a checkpoint with mdi and, where asked, against PyTorch.

Usage: measure.py MDI MODEL_DIR HELDOUT_JSONL [agree] [greedy] [draft] [replay] [recall]    (none: all)
agree   bits per byte of held-out text, mdi and PyTorch
greedy  20 prompts: how far greedy continuations agree, and the margin where they part
draft   acceptance by place and speed, with and without the draft layers
replay  bits per byte behind a prefilled prompt, exact and with --replay 128
recall  bits per byte of a definition that stands far before, with and without it in reach, exact and with --replay 128
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

MDI, MODEL, HELDOUT = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
WANTED = sys.argv[4:] or ["agree", "greedy", "draft", "replay", "recall"]
PROSE = ("sqlite", "postgresql", "python", "bible", "wordnet")  # what has whole documents held out


def mdi(*arguments):
    done = subprocess.run([MDI, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"mdi {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def evaluate(text, *options):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write(text)
        f.flush()
        return mdi("eval", "--model", MODEL, f.name, "--json", *options)


def documents():
    by_source = {}
    for line in open(HELDOUT):
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
    for source in PROSE:
        for d in rng.sample([d for d in docs[source] if len(d["text"]) > 300], 3):
            out.append(" ".join(d["text"].split(" ")[:24]))
    for d in rng.sample(docs["wordnet-chat"], 4) + docs["bible-chat"][:1]:
        out.append(f"<｜begin▁of▁sentence｜><｜User｜>{d['turns'][0][0]}<｜Assistant｜></think>")
    return out


class Torch:
    def __init__(self):
        import tokenizers
        import torch

        import checkpoint
        import config
        import model
        import tokenizer

        self.torch = torch
        self.t = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
        self.c = config.load(MODEL / "config.json")
        tables = model.Tables(self.c, tokenizer.compressed_ids(self.t), 2048, "cpu")
        self.net = model.Net(self.c, checkpoint.read(MODEL, self.c), tables)

    def logits(self, ids):
        with self.torch.no_grad():
            return self.net.logits(self.net.backbone(self.torch.tensor([ids]), exact=True)[0])[0]

    def bits(self, text, context):
        ids = [self.c.bos, *self.t.encode(text).ids]
        bits = 0.0
        for at in range(0, len(ids) - 1, context):
            window = ids[at : at + context + 1]
            log_p = self.torch.log_softmax(self.logits(window[:-1]).double(), -1)
            bits -= log_p[range(len(window) - 1), window[1:]].sum().item() / 0.6931471805599453
        return bits


def agree(docs, torch_model):
    for source in PROSE:
        text = text_of(docs[source], 12000)
        ours = evaluate(text, "--context", 1024)
        theirs = torch_model.bits(text, 1024) / ours["bytes"]
        print(f"{source:12} {ours['bytes']:6} bytes  mdi {ours['bits_per_byte']:.4f}  PyTorch {theirs:.4f}  {100 * (ours['bits_per_byte'] / theirs - 1):+.3f}%", flush=True)


def greedy(docs, torch_model):
    whole = 0
    for text in prompts(docs):
        r = mdi("generate", "--model", MODEL, "--prompt", text, "--max-tokens", 64, "--ignore-eos", "--json")
        p = len(r["prompt_ids"])
        top = torch_model.logits(r["prompt_ids"] + r["ids"][:-1])[p - 1 :].topk(2, -1)
        parted = next((i for i, t in enumerate(r["ids"]) if top.indices[i, 0].item() != t), None)
        whole += parted is None
        note = "" if parted is None else f"parts at {parted}, margin {top.values[parted, 0] - top.values[parted, 1]:.3f}"
        print(f"{'same' if parted is None else note:32} {text[-40:]!r} -> {r['text'][:60]!r}", flush=True)
    print(f"{whole} of 20 continuations are the same for 64 tokens", flush=True)


def draft(docs, _):
    for temperature in (0, 0.7):
        proposed, accepted, seconds, steps, tokens = [0] * 5, [0] * 5, {}, {}, {}
        for text in prompts(docs):
            for mode in ("none", "dspark"):
                r = mdi("generate", "--model", MODEL, "--prompt", text, "--max-tokens", 128, "--ignore-eos", "--json", "--temperature", temperature, "--draft", mode)
                seconds[mode] = seconds.get(mode, 0) + r["decode_seconds"]
                steps[mode] = steps.get(mode, 0) + r["decode_steps"]
                tokens[mode] = tokens.get(mode, 0) + r["completion_tokens"] - 1
                if mode == "dspark":
                    proposed = [a + b for a, b in zip(proposed, r["draft_proposed"])]
                    accepted = [a + b for a, b in zip(accepted, r["draft_accepted"])]
        rates = {m: tokens[m] / seconds[m] for m in seconds}
        print(f"temperature {temperature}: {tokens['dspark'] / steps['dspark']:.2f} tokens a step; accepted by place",
              *(f"{a / max(p, 1):.2f}" for a, p in zip(accepted, proposed)),
              f"; {rates['none']:.0f} tok/s plain, {rates['dspark']:.0f} with drafts", flush=True)


def replay(docs, _):
    for source in PROSE[:4]:
        text = text_of(docs[source], 40000)
        rates = {}
        for name, options in (("exact", ()), ("replay 128", ("--replay", 128))):
            rates[name] = evaluate(text, "--context", 1024, "--prefix", 768, *options)["bits_per_byte"]
        print(f"{source:12} exact {rates['exact']:.4f}  replay 128 {rates['replay 128']:.4f}  {100 * (rates['replay 128'] / rates['exact'] - 1):+.2f}%", flush=True)


def recall(docs, _):
    """A list of definitions of some 900 tokens, then the beginning of an early one again: the rest of it is scored."""
    rng = random.Random(5)
    lines = [s for d in docs["wordnet"] for s in d["text"].split("\n") if 60 < len(s) < 140 and " is " in s and not s.startswith("Kinds")]
    sums = {}
    for _ in range(40):
        chosen = rng.sample(lines, 34)
        asked = chosen[rng.randrange(2, 6)]
        cue, answer = asked[: asked.index(" is ") + 3], asked[asked.index(" is ") + 3 :]
        for name, before, options in (("in the text", chosen, ()), ("in the text, replay 128", chosen, ("--replay", 128)),
                                      ("not in the text", [s for s in chosen if s != asked], ())):
            head = "\n".join(before) + "\n" + cue
            with tempfile.TemporaryFile("w+") as f:
                f.write(head)
                f.seek(0)
                prefix = len(json.loads(subprocess.run([MDI, "tokenize", "--tokenizer", MODEL / "tokenizer.json"], stdin=f, capture_output=True, text=True, check=True).stdout))
            r = evaluate(head + answer, "--context", 2048, "--prefix", prefix, *options)
            s = sums.setdefault(name, [0, 0, 0, 0])
            for i, v in enumerate((r["bits"], r["bytes"], r["correct"], r["tokens"])):
                s[i] += v
    for name, (bits, size, correct, tokens) in sums.items():
        print(f"{name:26} {bits / size:.3f} bits per byte, {100 * correct / tokens:.1f}% of the tokens foreseen", flush=True)


def main():
    docs = documents()
    torch_model = Torch() if {"agree", "greedy"} & set(WANTED) else None
    for name in WANTED:
        print(f"-- {name}")
        globals()[name](docs, torch_model)


if __name__ == "__main__":
    main()
