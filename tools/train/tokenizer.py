#!/usr/bin/env python3
"""Trains the byte-level BPE and writes tokenizer.json. Usage: tokenizer.py TRAIN_JSONL OUT_JSON [--vocab 4096]"""

import argparse
import json
import unicodedata
import zlib

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

# The chat format's markers come first: their ids are the same for every vocabulary size.
MARKERS = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<think>",
           "</think>", "｜DSML｜", "<｜latest_reminder｜>", "<｜deepseek_image｜>"]
BOS, EOS, PAD, SYSTEM, USER, ASSISTANT, THINK, THINK_END = range(8)


def texts(path):
    for line in open(path):
        d = json.loads(line)
        yield d["text"] if "text" in d else "\n".join(t for turn in d["turns"] for t in turn)


def train(path, vocab):
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(texts(path), trainers.BpeTrainer(vocab_size=vocab, special_tokens=MARKERS, show_progress=False,
                                                           initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    out = json.loads(t.to_str())
    for entry in out["added_tokens"]:
        entry["special"] = entry["id"] <= PAD  # as in the release: markers are ordinary added tokens
    return out


def compressed_ids(tokenizer):
    """The engram's token map (spec engram.md 1): [compressed id of each token]."""
    decoder, seen, ids = decoders.ByteLevel(), {}, []
    spellings = {i: s for s, i in tokenizer.get_vocab().items()}
    for i in range(tokenizer.get_vocab_size()):
        text = spellings[i] if i < len(MARKERS) else decoder.decode([spellings[i]])
        if "\ufffd" in text:
            key = spellings[i]
        else:
            folded = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
            folded = "".join(ch for ch in folded if unicodedata.category(ch)[0] != "M").lower()
            spaced = "".join(" " if ch in " \t\r\n" else ch for ch in folded)
            while "  " in spaced:
                spaced = spaced.replace("  ", " ")
            key = (" " if spaced == " " else spaced.strip()) or text
        ids.append(seen.setdefault(key, len(seen)))
    return ids


EFFORT = "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n"


def parts(d):
    """A document as token ids and texts, in order: text between begin and end, or a conversation as the chat format writes it.
    One conversation in five is in thinking mode; its reasoning repeats the question."""
    if "text" in d:
        return [BOS, d["text"], EOS]
    thinking = zlib.crc32(d["turns"][0][0].encode()) % 5 == 0
    out = [BOS, SYSTEM, EFFORT] if thinking else [BOS]
    for i, (question, answer) in enumerate(d["turns"]):
        out += [USER, question, ASSISTANT]
        # Earlier turns lose their reasoning in the format.
        out += [THINK, f"The question is: {question}"] if thinking and i + 1 == len(d["turns"]) else []
        out += [THINK_END, answer, EOS]
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("train")
    parser.add_argument("out")
    parser.add_argument("--vocab", type=int, default=4096)
    options = parser.parse_args()
    out = train(options.train, options.vocab)
    with open(options.out, "w") as f:
        json.dump(out, f, ensure_ascii=False, separators=(",", ":"))
    t = tokenizers.Tokenizer.from_file(options.out)
    ids = compressed_ids(t)
    print(f"{t.get_vocab_size()} tokens, {max(ids) + 1} compressed ids")


if __name__ == "__main__":
    main()
