#!/usr/bin/env python3
"""Compares `mdi tokenize` with Hugging Face's tokenizers (pip install tokenizers) on random text and random ids.

Usage: tools/diff_tokenizer.py MDI TOKENIZER_JSON [--cases N] [--seed N]
Also trains a small ByteLevel tokenizer on the way and compares on that. Exit code 1 when anything differs.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

import tokenizers

WORDS = """the a of Engine Tokens don't we'll I'm THEY'RE naïve café Straße Ελλάδα Москва 東京 你好 世界 こんにちは カタカナ・テスト ー々 한국어
हिन्दी தமிழ் العربية עברית ไทย e\u0301 o\u0308\u0323 👍🏽 👩‍👩‍👧 🇫🇷 ☎︎ ❤️ 1 22 333 4444 12345678 ½ ² Ⅷ ٣٤ ३ ﬁ Ａ１ int main(){return 0;} x->y /*c*/
#include<v> snake_case camelCase !important #tag $x %d &amp; 'quoted' "str" (a) [b] {c} a+b=c <div> </div> \\n http://a.b/c?d=e&f=g
U+FFFD \ufffd \u200b \u200d \ufeff \u00ad \u2028 \u180e""".split()
SPACES = ["\n", "\r", "\r\n", "\t", " ", "  ", "   ", "\u00a0", "\u3000", "\u2003", "\u2028", "\x85", "\x0b", "\x0c", "\x1c", " \n ", "\n\n"]


def any_char(rng):
    """A code point of any plane, assigned or not."""
    while True:
        cp = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x3000), rng.randrange(0x2E80, 0xA000),
                         rng.randrange(0x10000), rng.randrange(0x10000, 0x20000), rng.randrange(0x110000)])
        if not 0xD800 <= cp < 0xE000:
            return chr(cp)


def by_category():
    table = {}
    for cp in range(0x110000):
        if not 0xD800 <= cp < 0xE000:
            table.setdefault(unicodedata.category(chr(cp)), []).append(chr(cp))
    return table


def make_text(rng, markers, categories):
    parts = []
    kind = rng.randrange(6)
    for _ in range(rng.randrange(1, 24)):
        pick = rng.random()
        if kind == 0 or pick < 0.12:
            parts.append(any_char(rng))
        elif kind == 1 or pick < 0.25:
            parts.append(rng.choice(categories[rng.choice(list(categories))]))
        elif pick < 0.5:
            parts.append(rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 3]))
        elif pick < 0.6 and markers:
            marker = rng.choice(markers)
            if rng.random() < 0.3:
                marker = marker[: rng.randrange(len(marker))] + rng.choice(["", " ", "<"]) + marker[rng.randrange(len(marker)):]
            parts.append(marker)
        elif pick < 0.65:
            parts.append(rng.choice("0123456789") * rng.randrange(1, 8))
        elif pick < 0.7:
            parts.append("".join(rng.choice("!?.,;:'\"()[]{}<>/\\|@#$%^&*-_=+`~") for _ in range(rng.randrange(1, 5))))
        elif pick < 0.72:
            parts.append(rng.choice("abxyzé中あ<｜") * rng.randrange(1, 300))
        else:
            parts.append(rng.choice(WORDS))
            if rng.random() < 0.5:
                parts.append(" ")
    return "".join(parts)


def ask(mdi, file, lines):
    run = subprocess.run([mdi, "tokenize", "--tokenizer", file, "--jsonl"], input="\n".join(map(json.dumps, lines)),
                         capture_output=True, text=True, encoding="utf-8")
    if run.returncode != 0:
        sys.exit(f"mdi tokenize: {run.stderr}")
    return [json.loads(line) for line in run.stdout.split("\n") if line]


def compare(mdi, file, rng, cases, categories):
    reference = tokenizers.Tokenizer.from_file(file)
    added = [t["content"] for t in json.loads(pathlib.Path(file).read_text())["added_tokens"]]
    markers = [m for m in added if "place" not in m] + added[-3:]
    texts = [make_text(rng, markers, categories) for _ in range(cases)]
    bad = 0
    for text, answer in zip(texts, ask(mdi, file, [{"text": t} for t in texts]), strict=True):
        ids = reference.encode(text, add_special_tokens=False).ids
        if answer["ids"] != ids or answer["decoded"] != reference.decode(ids, skip_special_tokens=False):
            bad += 1
            if bad <= 5:
                print(f"text {text!r}\n  reference {ids}\n  mdi       {answer['ids']}")
    size = reference.get_vocab_size()
    # Low ids hold the single bytes, whole or partial characters come from everywhere.
    pools = [range(size), range(min(600, size)), range(max(0, size - 1500), size)]
    requests = [{"ids": [rng.choice(rng.choice(pools)) for _ in range(rng.randrange(12))],
                 "skip_special_tokens": rng.random() < 0.5} for _ in range(cases)]
    for request, answer in zip(requests, ask(mdi, file, requests), strict=True):
        decoded = reference.decode(request["ids"], skip_special_tokens=request["skip_special_tokens"])
        if answer["decoded"] != decoded:
            bad += 1
            if bad <= 5:
                print(f"ids {request}\n  reference {decoded!r}\n  mdi       {answer['decoded']!r}")
    print(f"{file}: {cases} texts and {cases} id lists, {bad} differ")
    return bad


def train_small(folder, rng, categories):
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=4096, special_tokens=["<end>", "<|user|>"], show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model.train_from_iterator((make_text(rng, [], categories) for _ in range(20000)), trainer)
    file = str(pathlib.Path(folder) / "small.json")
    model.save(file)
    return file


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mdi")
    parser.add_argument("tokenizer")
    parser.add_argument("--cases", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    categories = by_category()
    bad = compare(args.mdi, args.tokenizer, rng, args.cases, categories)
    with tempfile.TemporaryDirectory() as folder:
        bad += compare(args.mdi, train_small(folder, rng, categories), rng, args.cases, categories)
    sys.exit(1 if bad else 0)


main()
