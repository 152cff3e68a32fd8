"""A server that runs out of memory over a request: the request gets an error, the process goes on."""
import http.client
import json
import re
import resource
import time

from conftest import ROOT, Server

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


def test_large_trees_end_where_memory_does():
    server = Server(ROOT / "models/small", "--no-thinking")
    seen = set()
    try:
        for name, body in BODIES.items():
            for megabytes in (20, 40, 70, 100, 150):
                status = open(f"/proc/{server.process.pid}/status").read()
                size = int(re.search(r"VmSize:\s+(\d+) kB", status)[1]) << 10
                resource.prlimit(server.process.pid, resource.RLIMIT_AS, (size + (megabytes << 20), -1))
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
