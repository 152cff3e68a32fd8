"""Documents to batches of tokens."""

import json
import lzma

import numpy as np
import tokenizers
import torch

import tokenizer


def load(path, tokenizer_json):
    """[(source, uint16 ids), ...] of a .jsonl or .jsonl.xz file."""
    t = tokenizers.Tokenizer.from_file(str(tokenizer_json))
    opened = lzma.open(path, "rt") if str(path).endswith(".xz") else open(path)
    documents = [json.loads(line) for line in opened]
    parts = [tokenizer.parts(d) for d in documents]
    encoded = iter(e.ids for e in t.encode_batch([p for ps in parts for p in ps if isinstance(p, str)]))
    flat = [[i for p in ps for i in (next(encoded) if isinstance(p, str) else [p])] for ps in parts]
    return [(d["source"], np.array(ids, dtype=np.uint16)) for d, ids in zip(documents, flat)]


def epochs(documents, length, batch, seed, device):
    """Endless batches [batch, length + 1]: in each epoch the documents in another order, cut into windows."""
    rng = np.random.default_rng(seed)
    arrays = [ids for _, ids in documents]
    while True:
        order = rng.permutation(len(arrays))
        stream = torch.from_numpy(np.concatenate([arrays[i] for i in order]).astype(np.int16))
        stream = stream.to(device).int() & 0xFFFF
        start = int(rng.integers(0, length))
        rows = (stream.numel() - start - 1) // length
        windows = torch.arange(rows, device=device)[torch.randperm(rows, device=device)]
        columns = torch.arange(length + 1, device=device)
        for at in range(0, rows - batch + 1, batch):
            yield stream[start + windows[at : at + batch, None] * length + columns].long()
