#!/usr/bin/env python3
"""Measures our tokenizer and Hugging Face's (pip install tokenizers) on the same 20 MB in one run, one thread each.

Usage: tools/bench_tokenizer.py BENCH_TOKENIZER TOKENIZER_JSON [--corpus FILE] [--mb N] [--passes N]

Without --corpus the text is made of what is at hand, a third each: English prose (docstrings, licences and other plain
text), code (the Python standard library), and Chinese (words of the tokenizer's own vocabulary in random order with
punctuation). Texts of about 4 KB; --corpus takes texts separated by zero bytes.
"""

import argparse
import ast
import json
import os
import pathlib
import random
import subprocess
import sysconfig
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402


def fill(parts, size):
    parts = [p for p in parts if p.strip()]
    text, at = [], 0
    while size > 0 and parts:
        part = parts[at % len(parts)].replace("\0", "")
        text.append(part)
        size -= len(part.encode())
        at += 1
    return "\n".join(text)


def english_and_code():
    prose, code = [], []
    for file in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" in file.parts or "test" in file.parts:
            continue
        try:
            source = file.read_text()
            nodes = list(ast.walk(ast.parse(source)))
        except (SyntaxError, ValueError, UnicodeDecodeError):
            continue
        code.append(source)
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        prose += [ast.get_docstring(n) or "" for n in nodes if isinstance(n, kinds)]
    prose += [f.read_text(errors="ignore") for f in pathlib.Path("/usr/share/common-licenses").glob("*") if f.is_file()]
    return prose, code


def chinese(reference, rng, size):
    words = []
    for id in range(reference.get_vocab_size()):
        word = reference.decode([id], skip_special_tokens=False)
        if word and all("\u4e00" <= c <= "\u9fa5" for c in word):
            words.append(word)
    text = []
    while size > 0:
        sentence = "".join(rng.choice(words) for _ in range(rng.randrange(3, 16))) + rng.choice("，，，。。；？！\n")
        text.append(sentence)
        size -= len(sentence.encode())
    return "".join(text)


def make_corpus(reference, size):
    prose, code = english_and_code()
    texts = []
    for part in (fill(prose, size // 3), fill(code, size // 3), chinese(reference, random.Random(1), size // 3)):
        texts += [part[i : i + 4096] for i in range(0, len(part), 4096)]
    random.Random(2).shuffle(texts)
    return texts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("tokenizer")
    parser.add_argument("--corpus")
    parser.add_argument("--mb", type=int, default=20)
    parser.add_argument("--passes", type=int, default=3)
    args = parser.parse_args()
    start = time.perf_counter()
    reference = tokenizers.Tokenizer.from_file(args.tokenizer)
    reference_load = time.perf_counter() - start
    if args.corpus:
        texts = pathlib.Path(args.corpus).read_text(encoding="utf-8").split("\0")
    else:
        texts = make_corpus(reference, args.mb * 1_000_000)
    megabytes = sum(len(t.encode()) for t in texts) / 1e6
    with tempfile.NamedTemporaryFile() as file:
        file.write("\0".join(texts).encode())
        file.flush()
        run = subprocess.run([args.bench, args.tokenizer, file.name, str(args.passes)], stdout=subprocess.PIPE, check=True)
    ours = json.loads(run.stdout)
    best = float("inf")
    for _ in range(args.passes):
        start = time.perf_counter()
        encoded = [reference.encode(t, add_special_tokens=False) for t in texts]
        best = min(best, time.perf_counter() - start)
    tokens = sum(len(e.ids) for e in encoded)
    start = time.perf_counter()
    for e in encoded:
        reference.decode(e.ids, skip_special_tokens=False)
    reference_decode = time.perf_counter() - start
    print(f"{megabytes:.1f} MB in {len(texts)} texts, {tokens} tokens, best of {args.passes}, one thread")
    print(f"{'':14} {'mdi':>12} {'tokenizers ' + tokenizers.__version__:>20}")
    print(f"{'load':14} {ours['load']:>10.3f} s {reference_load:>18.3f} s")
    print(f"{'encode':14} {megabytes / ours['encode']:>7.1f} MB/s {megabytes / best:>15.1f} MB/s")
    print(f"{'decode':14} {megabytes / ours['decode']:>7.1f} MB/s {megabytes / reference_decode:>15.1f} MB/s")
    print(f"mdi on all of it as one text: {megabytes / ours['one_text']:.1f} MB/s")
    print(f"mdi on a line without a space: 1 MB {ours['line_1mb']:.3f} s, 10 MB {ours['line_10mb']:.3f} s")
    if ours["tokens"] != tokens:
        raise SystemExit(f"token counts differ: mdi {ours['tokens']}, tokenizers {tokens}")


main()
