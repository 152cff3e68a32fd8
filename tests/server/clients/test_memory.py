"""What large requests leave behind. Over one that takes all memory the process goes on."""
import concurrent.futures
import http.client
import json
import pathlib
import re
import resource
import time

from conftest import ROOT, Server, wait_until

MESSAGES = '{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, '
BODIES = {
    "objects in what is ignored": MESSAGES + '"metadata": [' + ", ".join(['{"a": 1}'] * 700_000) + "]}",
    "objects in what is read": '{"messages": [' + ", ".join(['{"a": {"b": {}}}'] * 400_000) + "]}",
    "keys": MESSAGES + '"metadata": {' + ", ".join(f'"{i}": [[]]' for i in range(400_000)) + "}}",
    "a schema": MESSAGES + '"response_format": {"type": "json_schema", "json_schema": {"name": "r", "schema": {"enum": ['
                + ", ".join(["[[{}]]"] * 300_000) + "]}}}}",
    "arguments": '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "1", '
                 '"function": {"name": "f", "arguments": ' + json.dumps('{"a": [' + ", ".join(["[[]]"] * 400_000) + "]}")
                 + '}}]}, {"role": "tool", "tool_call_id": "1", "content": "x"}], "max_tokens": 1}',
}


def ask(server, method, path, body=None):
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
    try:
        connection.request(method, path, body, {"content-type": "application/json"} if body else {})
        return connection.getresponse().status
    finally:
        connection.close()


def size_of(server, what):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(what + r":\s+(\d+) kB", status)[1]) << 10


def test_large_trees_end_where_memory_does():
    server = Server(ROOT / "models/small", "--no-thinking")
    seen = set()
    try:
        for name, body in BODIES.items():
            for megabytes in (20, 40, 70, 100, 150):
                limit = size_of(server, "VmSize") + (megabytes << 20)
                resource.prlimit(server.process.pid, resource.RLIMIT_AS, (limit, -1))
                try:
                    seen.add(ask(server, "POST", "/v1/chat/completions", body))
                except (http.client.HTTPException, ConnectionError):
                    pass  # there was not even room for an answer
                resource.prlimit(server.process.pid, resource.RLIMIT_AS, (-1, -1))
                time.sleep(0.05)  # a process that aborts may have closed its connections before it is gone
                assert server.process.poll() is None, (name, megabytes, server.log.read_text()[-1000:])
                assert ask(server, "GET", "/health") == 200
        assert 500 in seen, seen
        server.stop()
    finally:
        server.process.kill()
        server.folder.cleanup()


def test_memory_is_given_back():
    server = Server(ROOT / "models/small", "--no-thinking")
    body = MESSAGES + '"metadata": [' + ", ".join(['{"a": "bcdefgh"}'] * 700_000) + '], "unknown": 1}'
    try:
        ask(server, "GET", "/health")
        before = size_of(server, "VmRSS")
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            statuses = list(threads.map(lambda _: ask(server, "POST", "/v1/chat/completions", body), range(8)))
        assert statuses == [400] * 8
        assert wait_until(lambda: size_of(server, "VmRSS") < before + (80 << 20)), size_of(server, "VmRSS") - before
        server.stop()
    finally:
        server.process.kill()
        server.folder.cleanup()
