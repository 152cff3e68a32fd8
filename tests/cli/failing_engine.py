#!/usr/bin/env python3
"""`mdi serve` when a step of the model fails: whoever is answered gets the error of its API, and the process ends with 1.

Usage: failing_engine.py PROGRAM MODEL. PROGRAM is mdi with tests/cli/failing_step.cpp in it."""
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

MESSAGES = [{"role": "user", "content": "Hello!"}]  # some forty tokens, and so many slow steps
CHAT = {"messages": MESSAGES, "temperature": 0, "max_tokens": 900, "ignore_eos": True}
MESSAGE = {"model": "small", "messages": MESSAGES, "temperature": 0, "max_tokens": 900}
WANTED = {
    "chat": ("/v1/chat/completions", CHAT), "chat stream": ("/v1/chat/completions", CHAT | {"stream": True}),
    "message": ("/v1/messages", MESSAGE), "message stream": ("/v1/messages", MESSAGE | {"stream": True}),
}


def ask(port, path, body, answers, name):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    answers[name] = (response.status, response.read().decode())


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def running(port):
    return int(re.search(r"^mdi_requests_running (\d+)", get(port, "/metrics")[1], re.MULTILINE).group(1))


def check(condition, *what):
    if not condition:
        raise SystemExit("FAILED: " + " ".join(str(w) for w in what))


def main():
    program, model = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        failure = pathlib.Path(folder) / "failure"
        server = subprocess.Popen([program, "serve", model, "--listen", "127.0.0.1:0", "--no-thinking", "--slots", "8", "--model-name",
                                   "small", "--max-length", "1024", "--threads", "1", "--no-draft"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env=os.environ | {"MDI_TEST_FAILURE": str(failure)})
        try:
            ready = server.stdout.readline()
            found = re.search(r"ready on http://127\.0\.0\.1:(\d+)", ready)
            check(found, "the server did not start:", ready)
            port = int(found.group(1))
            answers = {}
            clients = [threading.Thread(target=ask, args=(port, path, body, answers, name), daemon=True)
                       for name, (path, body) in WANTED.items()]
            for client in clients:
                client.start()
            end = time.monotonic() + 120
            while running(port) < len(clients):
                check(time.monotonic() < end, "the requests do not run:", answers)
                time.sleep(0.05)
            time.sleep(1)  # a few steps, so that the streams have begun
            check(get(port, "/health")[0] == 200, "not healthy before the failure")
            failure.touch()
            for client in clients:
                client.join(120)
            code = server.wait(120)
            log = server.stderr.read()
        finally:
            if server.poll() is None:
                server.kill()
                server.wait()
    check(code == 1, "exit code", code)
    check("the engine has failed: the device was lost" in log, "log:", log)
    check(log.rstrip().endswith("engine: the device was lost"), "log:", log)
    check(len(answers) == len(WANTED), "answers:", sorted(answers))
    for name, (status, body) in answers.items():
        check("the device was lost" in body, name, status, body[-300:])
    check(answers["chat"][0] == 500 and json.loads(answers["chat"][1])["error"]["code"] == "generation_failed", answers["chat"])
    check(answers["message"][0] == 500 and json.loads(answers["message"][1])["error"]["type"] == "api_error", answers["message"])
    check(answers["chat stream"][0] == 200 and answers["chat stream"][1].endswith("data: [DONE]\n\n"), "chat stream")
    last = answers["message stream"][1].strip().rsplit("\n\n", 1)[-1]
    check(answers["message stream"][0] == 200 and last.startswith("event: error\n"), "message stream:", last)
    print("open requests were told, exit code 1")


if __name__ == "__main__":
    main()
