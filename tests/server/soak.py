#!/usr/bin/env python3
"""Many streams at once against `mdi serve`, with clients that hang up, reset, stall, send rubbish or read to the end.

Afterwards every cache block and slot must be free, no connection or descriptor left, memory as large as it was after the
first part, and the server must end with exit code 0 when it is told to. Python's standard library only."""

import argparse
import asyncio
import collections
import json
import os
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import time

WORDS = "the a ship river light stone paper city music garden letter winter table number of and in on is was".split()


class Server:
    def __init__(self, mdi, model, streams, device):
        command = [mdi, "serve", model, "--device", device, "--listen", "127.0.0.1:0", "--queue", str(4 * streams), "--slots", "16",
                   "--max-length", "1024", "--snapshots", "64", "--max-connections", str(2 * streams + 64), "--drain-seconds", "20",
                   "--no-thinking"]
        self.log = open(os.environ.get("MDI_SOAK_LOG", os.devnull), "wb")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"ready on http://127\.0\.0\.1:(\d+)", line)
        if not found:
            raise SystemExit(f"the server did not start: {line!r}")
        self.port = int(found.group(1))

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


async def connect(port, small=False):
    s = socket.socket()
    s.setblocking(False)
    if small:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(s, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=s, limit=2**16)


def request(path, body=None):
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    return head.encode() + b"\r\n" + data


async def metrics(port):
    reader, writer = await connect(port)
    writer.write(request("/metrics"))
    text = (await asyncio.wait_for(reader.read(-1), 30)).decode()
    writer.close()
    values = collections.defaultdict(float)
    for line in text.split("\r\n\r\n", 1)[1].splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    return values


def reason(m, name, value):
    return m[f'{name}{{reason="{value}"}}']


def chat(rng, stream, fat=False):
    body = {
        "messages": [{"role": "user", "content": " ".join(rng.choices(WORDS, k=rng.randint(3, 40)))}],
        "max_tokens": rng.randint(4, 32),
        "stream": stream,
        "seed": rng.randint(0, 1000),
        "temperature": rng.choice([0, 0.8]),
    }
    if fat:  # each token carries as much as it can
        body |= {"max_tokens": 400, "logprobs": True, "top_logprobs": 20}
    return request("/v1/chat/completions", body)


async def one_client(port, rng, counts):
    kind = rng.choices(["read", "hang up", "reset", "plain", "plain hang up", "stall", "rubbish", "half a body"],
                       [40, 15, 8, 10, 10, 8, 4, 5])[0]
    reader, writer = await connect(port, small=kind == "stall")
    try:
        if kind == "rubbish":
            writer.write(rng.randbytes(rng.randint(1, 3000)))
            await asyncio.wait_for(reader.read(-1), 30)
        elif kind == "half a body":
            data = chat(rng, True)
            writer.write(data[: rng.randint(1, len(data) - 1)])
            await asyncio.sleep(rng.random() * 2)
        elif kind == "stall":
            writer.write(chat(rng, True, fat=True))
            writer.transport.pause_reading()
            await asyncio.sleep(rng.random() * 8)
        elif kind in ("hang up", "reset", "plain hang up"):
            writer.write(chat(rng, kind != "plain hang up"))
            await asyncio.sleep(rng.random() ** 2 * 4)
            if kind == "reset":
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        else:
            writer.write(chat(rng, kind == "read"))
            answer = await asyncio.wait_for(reader.read(-1), 300)
            status = answer.split(b" ", 2)[1] if answer.startswith(b"HTTP/1.1 ") else b"?"
            whole = status == b"200" and (kind == "plain" or answer.endswith(b"0\r\n\r\n"))
            if kind == "read" and whole and b"[DONE]" not in answer:
                whole = False
            if status == b"429" or status == b"503":
                kind = "busy"
            elif not whole:
                kind = "not whole"
                if counts["not whole"] < 3:
                    print("an answer that is not whole:", answer[-300:], file=sys.stderr)
    except (ConnectionError, asyncio.IncompleteReadError):
        if kind in ("read", "plain"):
            kind = "not whole"
    finally:
        writer.transport.abort() if kind == "reset" else writer.close()
    counts[kind] += 1


async def part(port, rng, streams, seconds, counts):
    end = time.monotonic() + seconds

    async def loop():
        while time.monotonic() < end:
            await one_client(port, rng, counts)

    tasks = [asyncio.create_task(loop()) for _ in range(streams)]
    most = 0
    while time.monotonic() < end:
        await asyncio.sleep(1)
        m = await metrics(port)
        most = max(most, m["mdi_http_answering"])
    await asyncio.gather(*tasks)
    return most


async def settle(port, seconds=60):
    end = time.monotonic() + seconds
    while True:
        m = await metrics(port)
        idle = m["mdi_requests_running"] == 0 and m["mdi_requests_waiting"] == 0 and m["mdi_generations"] == 0
        if (idle and m["mdi_http_connections"] <= 1) or time.monotonic() > end:
            return m
        await asyncio.sleep(0.25)


async def soak(server, args):
    rng = random.Random(args.seed)
    counts = collections.Counter()
    before = await metrics(server.port)
    await part(server.port, rng, args.streams, args.seconds / 3, counts)
    warm = await settle(server.port)
    most = await part(server.port, rng, args.streams, args.seconds * 2 / 3, counts)
    after = await settle(server.port)

    def memory(m):
        return (m["process_resident_memory_bytes"] - m["mdi_answers_memory_bytes"]) / 2**20

    print(f"{sum(counts.values())} clients, {most:.0f} answers at once at most: {dict(counts)}")
    print(f"memory {memory(before):.1f} MiB at start, {memory(warm):.1f} after the first part, {memory(after):.1f} at the end")
    print(f"{after['mdi_generated_tokens_total']:.0f} tokens, "
          f"{reason(after, 'mdi_requests_ended_total', 'cancelled'):.0f} requests cancelled, "
          f"{after['mdi_preemptions_total']:.0f} preemptions, "
          f"gone: {reason(after, 'mdi_http_gone_total', 'hangup'):.0f} hung up, "
          f"{reason(after, 'mdi_http_gone_total', 'backlog'):.0f} backlog, "
          f"{reason(after, 'mdi_http_gone_total', 'write_timeout'):.0f} write timeout")
    faults = []

    def expect(condition, what):
        if not condition:
            faults.append(what)

    expect(after["mdi_blocks_free"] + after["mdi_blocks_idle"] == after["mdi_blocks"],
           f"blocks: {after['mdi_blocks_free']:.0f} free + {after['mdi_blocks_idle']:.0f} idle of {after['mdi_blocks']:.0f}")
    expect(after["mdi_slots_free"] == after["mdi_slots"], f"slots: {after['mdi_slots_free']} of {after['mdi_slots']} free")
    expect(after["mdi_requests_running"] == 0 and after["mdi_requests_waiting"] == 0, "requests are left")
    expect(after["mdi_generations"] == 0 and after["mdi_jobs_waiting"] == 0, "generations are left")
    expect(after["mdi_http_connections"] <= 1 and after["mdi_http_answering"] <= 1, "connections are left")
    expect(after["mdi_http_backlog_bytes"] == 0 and after["mdi_http_body_bytes"] == 0, "bytes are left")
    expect(after["process_open_fds"] <= before["process_open_fds"] + 4,
           f"descriptors: {before['process_open_fds']:.0f} before, {after['process_open_fds']:.0f} after")
    expect(memory(after) - memory(warm) < args.growth, f"memory grew by {memory(after) - memory(warm):.1f} MiB")
    expect(counts["not whole"] == 0, f"{counts['not whole']} answers were not whole")
    expect(counts["read"] > 0 and reason(after, 'mdi_requests_ended_total', 'cancelled') > 0, "nothing was tested")
    expect(after["mdi_failed"] == 0, "the engine has failed")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mdi")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="what runs the model: cpu or cuda")
    parser.add_argument("--growth", type=float, default=24, help="MiB that memory may grow by in the second part")
    args = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * args.streams + 200
    if soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise SystemExit(f"{needed} open files are needed, the system allows {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    server = Server(args.mdi, args.model, args.streams, args.device)
    try:
        faults = asyncio.run(soak(server, args))
        code = server.end()
        if code != 0:
            faults.append(f"the server ended with {code}")
    finally:
        if server.process.poll() is None:
            server.process.kill()
    for fault in faults:
        print("FAULT:", fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
