"""Documents to batches of tokens."""

import json
import lzma

import numpy as np
import tokenizers
import torch

import tokenizer


def load(path, tokenizer_json):
    """(source of each document, all tokens as uint16, where each document begins and the last one ends) of a .jsonl[.xz] file."""
    t = tokenizers.Tokenizer.from_file(str(tokenizer_json))
    opened = lzma.open(path, "rt") if str(path).endswith(".xz") else open(path)
    documents = [json.loads(line) for line in opened]
    parts = [tokenizer.parts(d) for d in documents]
    encoded = iter(e.ids for e in t.encode_batch([p for ps in parts for p in ps if isinstance(p, str)]))
    flat = [np.array([i for p in ps for i in (next(encoded) if isinstance(p, str) else [p])], dtype=np.uint16) for ps in parts]
    return [d["source"] for d in documents], np.concatenate(flat), np.cumsum([0] + [len(ids) for ids in flat])


def epochs(tokens, begins, length, batch, seed, device):
    """Endless batches [batch, length + 1]: in each epoch the documents in another order, cut into windows."""
    g = torch.Generator(device=device).manual_seed(seed)
    tokens = torch.from_numpy(tokens.astype(np.int16)).to(device)
    begins = torch.from_numpy(begins).to(device)
    sizes = begins[1:] - begins[:-1]
    columns = torch.arange(length + 1, device=device)
    while True:
        order = torch.randperm(len(sizes), generator=g, device=device)
        n = sizes[order]
        index = torch.repeat_interleave(begins[:-1][order] - (torch.cumsum(n, 0) - n), n) + torch.arange(len(tokens), device=device)
        stream = tokens[index]
        start = int(torch.randint(0, length, (1,), generator=g, device=device))
        rows = (len(stream) - start - 1) // length
        windows = torch.randperm(rows, generator=g, device=device)
        for at in range(0, rows - batch + 1, batch):
            yield stream[start + windows[at : at + batch, None] * length + columns].long()
