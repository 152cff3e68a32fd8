"""How `mdi serve` ends while somebody waits for an answer."""
import http.client
import json
import signal
import time

from conftest import ROOT, Server

LONG = {"messages": [{"role": "user", "content": "Tell me all."}], "max_tokens": 3000, "ignore_eos": True,
        "stream": True}


def open_answer(server):
    """A connection on which a stream has begun."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(LONG), {"content-type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200 and response.readline().startswith(b"data: ")
    return connection


def test_a_second_signal_cuts_answers_and_the_exit_code_says_so():
    for _ in range(4):
        server = Server(ROOT / "models/small", "--no-thinking")
        connection = open_answer(server)
        try:
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(timeout=60) == 1, server.log.read_text()
        finally:
            connection.close()
            server.process.kill()
            server.folder.cleanup()


def test_the_end_does_not_wait_for_a_compilation():
    """A schema that takes long to compile keeps a thread busy, which is left behind: the end is still a clean one."""
    objects = [{"type": "object", "properties": {f"{c}{i}": {"type": "string"} for c in "abc"},
                "required": [f"{c}{i}" for c in "abc"], "additionalProperties": False} for i in range(400)]
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5,
            "response_format": {"type": "json_schema",
                                "json_schema": {"name": "r", "strict": True, "schema": {"anyOf": objects}}}}
    server = Server(ROOT / "models/small", "--no-thinking")
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        assert response.status == 400 and b"compiling takes longer" in response.read()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=60) == 0, server.log.read_text()
    finally:
        connection.close()
        server.process.kill()
        server.folder.cleanup()
