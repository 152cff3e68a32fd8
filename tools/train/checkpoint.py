"""Parameters to a checkpoint in the released format, and back (spec checkpoint.md)."""

import json
import pathlib
import struct

import numpy as np
import torch

import model
import quant


def file_name(name):
    whole = name.endswith(("weight", "bias", "attn_sink")) or name.split(".")[-1].startswith("hc_")
    return name if whole else name + ".weight"


def _e8m0(scale):
    return ((scale.view(torch.int32) >> 23) & 255).to(torch.uint8)


def _stored(name, w):
    """[(suffix, dtype string, shape, bytes)] of one parameter."""
    w = w.detach().float().cpu().contiguous()
    kind = model.storage(name)
    if kind == "fp8":
        t, s = quant.tile_scale(w)
        codes = (t / s).clamp(-448, 448).to(torch.float8_e4m3fn).flatten(-4, -3).flatten(-2)
        return [("weight", "F8_E4M3", codes.shape, codes.view(torch.uint8)), ("scale", "F8_E8M0", s.squeeze(-1).squeeze(-2).shape, _e8m0(s))]
    if kind == "row_fp8":
        t = w.unflatten(-1, (-1, 32))
        s = quant.power_of_two(t.abs().amax(-1, keepdim=True).clamp(min=2.0**-100), quant.INV_448)
        codes = (t / s).clamp(-448, 448).to(torch.float8_e4m3fn).flatten(-2)
        return [("weight", "F8_E4M3", codes.shape, codes.view(torch.uint8)), ("scale", "F8_E8M0", s.squeeze(-1).shape, _e8m0(s))]
    if kind == "fp4":
        t, s = quant.row_scale(w)
        q = quant.e2m1(t / s).flatten(-2)
        grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        code = torch.searchsorted(grid, q.abs().contiguous()).to(torch.uint8) | (torch.signbit(q).to(torch.uint8) << 3)
        code = torch.where(q == 0, torch.zeros_like(code), code)
        packed = code[..., 0::2] | (code[..., 1::2] << 4)
        return [("weight", "I8", packed.shape, packed), ("scale", "F8_E8M0", s.squeeze(-1).shape, _e8m0(s))]
    if kind == "bf16":
        return [("", "BF16", w.shape, w.to(torch.bfloat16).view(torch.int16))]
    return [("", "F32", w.shape, w)]


def tensors(weights):
    """name -> (dtype, shape, bytes), as the file has them: stacked experts are taken apart."""
    out = {}
    for name, w in weights.items():
        if ".experts." in name:
            prefix, which = name.rsplit(".", 1)
            items = [(f"{prefix}.{e}.{which}", w[e]) for e in range(w.shape[0])]
        else:
            items = [(name, w)]
        for n, t in items:
            for suffix, dtype, shape, data in _stored(name, t):
                full = f"{n}.{suffix}" if suffix else file_name(n)
                out[full] = (dtype, list(shape), data.numpy().tobytes())
    return out


def write(path, weights, metadata=None):
    width = {"F32": 4, "BF16": 2}
    items = sorted(tensors(weights).items(), key=lambda kv: (-width.get(kv[1][0], 1), kv[0]))
    header, at = {"__metadata__": metadata or {"format": "pt"}}, 0
    for name, (dtype, shape, data) in items:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, (_, _, data) in items:
            f.write(data)


def _read_files(folder):
    out = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        n = struct.unpack("<Q", data[:8])[0]
        for name, e in json.loads(data[8 : 8 + n]).items():
            if name != "__metadata__":
                a, b = e["data_offsets"]
                out[name] = (e["dtype"], e["shape"], data[8 + n + a : 8 + n + b])
    return out


_TORCH = {"F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.uint8, "I8": torch.uint8, "BF16": torch.bfloat16, "F32": torch.float32,
          "I32": torch.int32, "I64": torch.int64, "U8": torch.uint8}


def _tensor(entry):
    dtype, shape, data = entry
    return torch.frombuffer(bytearray(data), dtype=_TORCH[dtype]).reshape(shape) if data else torch.zeros(shape, dtype=_TORCH[dtype])


def _scale(t):
    return (t.to(torch.int32) << 23).view(torch.float32)


def read_tensors(path_or_folder):
    p = pathlib.Path(path_or_folder)
    files = _read_files(p) if p.is_dir() else None
    if files is None:
        data = p.read_bytes()
        n = struct.unpack("<Q", data[:8])[0]
        files = {k: (e["dtype"], e["shape"], data[8 + n + e["data_offsets"][0] : 8 + n + e["data_offsets"][1]])
                 for k, e in json.loads(data[8 : 8 + n]).items() if k != "__metadata__"}
    return {k: _tensor(v) for k, v in files.items()}


def read(folder, c):
    """The parameters of a checkpoint, fp32 values on their grids. Every tensor of the files is used or the call fails."""
    files = read_tensors(folder)
    used, out = set(), {}

    def take(n):
        used.add(n)
        return files[n]

    def one(n, kind):
        if kind in ("fp8", "row_fp8"):
            w, s = take(n + ".weight").float(), _scale(take(n + ".scale"))
            tiles = (32 if kind == "fp8" else 1, 32)
            return w * s.repeat_interleave(tiles[0], 0).repeat_interleave(tiles[1], 1)
        if kind == "fp4":
            p, s = take(n + ".weight"), _scale(take(n + ".scale"))
            grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
            w = torch.stack((grid[(p & 15).long()], grid[(p >> 4).long()]), -1).flatten(-2)
            return w * s.repeat_interleave(32, 1)
        return take(file_name(n)).float()

    for name, (shape, _) in model.shapes(c).items():
        kind = model.storage(name)
        if ".experts." in name:
            prefix, which = name.rsplit(".", 1)
            w = torch.stack([one(f"{prefix}.{e}.{which}", kind) for e in range(shape[0])])
        else:
            w = one(name, kind)
        if tuple(w.shape) != tuple(shape):
            raise SystemExit(f"{folder}: {name}: expected {tuple(shape)}, found {tuple(w.shape)}")
        out[name] = w
    left = set(files) - used
    if left:
        raise SystemExit(f"{folder}: tensors that were not used: {sorted(left)[:5]}")
    return out
