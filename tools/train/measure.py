#!/usr/bin/env python3
"""Measures a checkpoint with mdi, and compares it with what PyTorch computed (reference.py).

Usage: measure.py MDI MODEL_DIR HELDOUT.jsonl REFERENCE.json [agree] [greedy] [draft] [replay] [recall]    (none: all)
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

from reference import SOURCES, documents, prompts, text_of

MDI, MODEL, HELDOUT, REFERENCE = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4]
WANTED = sys.argv[5:] or ["agree", "greedy", "draft", "replay", "recall"]


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


def agree(_, reference):
    for r in reference["texts"]:
        ours = evaluate(r["text"], "--context", 1024)
        theirs = r["bits"] / ours["bytes"]
        print(f"{r['source']:12} {ours['bytes']:6} bytes  mdi {ours['bits_per_byte']:.4f}  PyTorch {theirs:.4f}  {100 * (ours['bits_per_byte'] / theirs - 1):+.3f}%", flush=True)


def greedy(_, reference):
    whole = 0
    for r in reference["greedy"]:
        ours = mdi("generate", "--model", MODEL, "--prompt", r["prompt"], "--max-tokens", len(r["ids"]), "--ignore-eos", "--json")
        parted = next((i for i, (a, b) in enumerate(zip(ours["ids"], r["ids"])) if a != b), None)
        whole += parted is None
        note = "same" if parted is None else f"parts at {parted}, margin {r['margins'][parted]:.3f}"
        print(f"{note:28} {r['prompt'][-40:]!r} -> {ours['text'][:70]!r}", flush=True)
    print(f"{whole} of {len(reference['greedy'])} continuations are the same for {len(r['ids'])} tokens", flush=True)


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
    for source in SOURCES[:4]:
        text = text_of(docs[source], 30000)
        rates = {}
        for name, options in (("exact", ()), ("replay 128", ("--replay", 128))):
            rates[name] = evaluate(text, "--context", 1024, "--prefix", 768, *options)["bits_per_byte"]
        print(f"{source:12} exact {rates['exact']:.4f}  replay 128 {rates['replay 128']:.4f}  {100 * (rates['replay 128'] / rates['exact'] - 1):+.2f}%", flush=True)


def recall(docs, _):
    """A list of definitions of some 900 tokens, then the beginning of an early one again: the rest of it is scored."""
    rng = random.Random(5)
    lines = [s for d in docs["wordnet"] for s in d["text"].split("\n") if 60 < len(s) < 140 and " is " in s and not s.startswith("Kinds")]
    sums = {}
    for _ in range(24):
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
    docs = documents(HELDOUT)
    reference = json.loads(pathlib.Path(REFERENCE).read_text())
    for name in WANTED:
        print(f"-- {name}", flush=True)
        globals()[name](docs, reference)


if __name__ == "__main__":
    main()
