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
    texts = [x for d in documents for x in ([d["text"]] if "text" in d else [s for turn in d["turns"] for s in turn])]
    encoded = iter([e.ids for e in t.encode_batch(texts)])

    class Encoded:  # encode_document takes the texts in order
        def encode(self, _):
            return type("E", (), {"ids": next(encoded)})

    return [(d["source"], np.array(tokenizer.encode_document(Encoded(), d), dtype=np.uint16)) for d in documents]


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
