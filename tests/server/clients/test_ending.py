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
