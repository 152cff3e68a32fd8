"""Compares this network with outputs of the model's reference implementation. Usage: check_golden.py GOLDEN_DIR (tiny-text)

Prints, for each prompt, the relative error of the prefill logits and of each layer's stream, and of the draft logits.
"""

import json
import pathlib
import sys

import torch

import checkpoint
import config
import model


def relative(found, expected):
    return ((found.float() - expected.float()).norm() / expected.float().norm()).item()


def main():
    folder = pathlib.Path(sys.argv[1])
    c = config.load(folder / "config.json")
    token_map = json.loads((folder / "engram_token_map.json").read_text())["token_map"]
    weights = checkpoint.read(folder, c)
    net = model.Net(c, weights, model.Tables(c, token_map, 512, "cpu"))
    for path in sorted((folder / "expected").glob("prompt*.safetensors")):
        e = checkpoint.read_tensors(path)
        ids = e["input.tokens"].long()[None]
        streams = {}
        x, main_hidden, _, _ = net.backbone(ids, exact=True, watch=lambda i, h, pre: streams.__setitem__(i, h))
        print(path.name, "prefill logits", f"{relative(net.logits(x)[0], e['prefill.logits']):.2e}")
        print("  layers", *(f"{relative(h[0], e[f'prefill.layers.{i}.out']):.1e}" for i, h in streams.items() if f"prefill.layers.{i}.out" in e))
        if "prefill.main_hidden" in e:
            print("  main_hidden", f"{relative(main_hidden[0], e['prefill.main_hidden']):.2e}")
        # Drafting after each decode step is a block behind each position of the whole text.
        tokens = torch.cat((ids[0], e["decode.tokens"].long()))
        x, main_hidden, _, _ = net.backbone(tokens[None], exact=True)
        print("  decode logits", f"{relative(net.logits(x)[0, ids.shape[1]:], e['decode.logits']):.2e}")
        errors = []
        for n in range(e["dspark.logits"].shape[0]):
            length = ids.shape[1] + n + 1
            with_anchor = torch.cat((tokens[:length], e["dspark.anchor"][n : n + 1].long()))[None]
            z, xd, _ = net.drafts(main_hidden[:, :length], with_anchor, torch.tensor([[length - 1]]), exact=True)
            base = net.logits(xd)[0, 0]
            logits = torch.stack([base[i] + net.markov(e["dspark.draft_ids"][n, i].long())[1] for i in range(c.dspark_block_size)])
            errors.append(relative(logits, e["dspark.logits"][n]))
            emb = net.markov(e["dspark.draft_ids"][n, :-1].long())[0]
            conf = net.confidence(z[0, 0], emb)
        print("  draft logits", *(f"{v:.1e}" for v in errors), "confidence of the last", f"{(conf - e['dspark.confidence'][n]).abs().max():.1e}")


if __name__ == "__main__":
    with torch.no_grad():
        main()
