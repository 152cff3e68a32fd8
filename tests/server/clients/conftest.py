"""A running `mdi serve` for the tests with OpenAI's and Anthropic's own client libraries.

MDI names the program (ctest sets it). Each server is started on a free port of 127.0.0.1, ended with SIGTERM, and has to
end by itself with status 0, with nothing left running and every cache block given back."""
import os
import pathlib
import re
import subprocess
import tempfile
import time
import urllib.request

import anthropic
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("MDI", str(ROOT / "build/release/mdi"))


class Server:
    """One `mdi serve`; `key` is sent with every request of its clients."""

    def __init__(self, model, *options, keys=()):
        self.folder = tempfile.TemporaryDirectory(prefix="clients-test-")
        self.log = pathlib.Path(self.folder.name, "log")
        self.key = keys[0] if keys else "none"
        environment = dict(os.environ)
        environment.pop("MDI_API_KEYS", None)
        if keys:
            file = pathlib.Path(self.folder.name, "keys")
            file.write_text("\n".join(keys) + "\n")
            file.chmod(0o600)
            options = (*options, "--api-key-file", str(file))
        with self.log.open("w") as log:
            self.process = subprocess.Popen([PROGRAM, "serve", str(model), "--listen", "127.0.0.1:0", *options],
                                            stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            if ready := re.search(r"ready on (http://\S+)", self.log.read_text()):
                self.url = ready[1]
                return
            time.sleep(0.05)
        self.process.kill()
        raise RuntimeError(f"the server did not get ready:\n{self.log.read_text()}")

    def settings(self, path):
        return {"base_url": self.url + path, "api_key": self.key, "max_retries": 0, "timeout": 120}

    def openai(self, **options):
        return openai.OpenAI(**self.settings("/v1") | options)

    def async_openai(self, **options):
        return openai.AsyncOpenAI(**self.settings("/v1") | options)

    def anthropic(self, **options):
        return anthropic.Anthropic(**self.settings("") | options)

    @property
    def model(self):
        return self.openai().models.list().data[0].id

    def metrics(self):
        """Name and labels to value."""
        request = urllib.request.Request(self.url + "/metrics", headers={"authorization": "Bearer " + self.key})
        with urllib.request.urlopen(request, timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}

    def metric(self, name, **labels):
        values = self.metrics()
        key = (name, tuple(sorted(labels.items())))
        assert key in values, f"no metric {key}; there are: {sorted(values)}"
        return values[key]

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        status = self.process.wait(timeout=60)
        text = self.log.read_text()
        self.folder.cleanup()
        assert status == 0, f"the server ended with status {status}:\n{text}"


def make_seeing_checkpoint(folder):
    """Synthetic, with a vision tower and room for a tokenizer of bytes."""
    subprocess.run([PROGRAM, "synth", str(folder), "--preset", "tiny-vision", "--vocab", "512", "--quiet"], check=True,
                   timeout=120)
    # Of 256 tokens, which the format of tools alone needs.
    config = folder / "config.json"
    text = config.read_text()
    assert text.count('"max_position_embeddings": 256') == 1
    config.write_text(text.replace('"max_position_embeddings": 256', '"max_position_embeddings": 4096'))


@pytest.fixture(scope="session")
def start_server():
    started = []

    def start(*arguments, **options):
        started.append(Server(*arguments, **options))
        return started[-1]

    yield start
    failures = []
    for server in started:
        try:
            server.stop()
        except (AssertionError, subprocess.TimeoutExpired) as failure:
            server.process.kill()
            failures.append(str(failure))
    assert not failures, "\n".join(failures)


@pytest.fixture(scope="session")
def server(start_server):
    """The small model, which writes English and calls no tools by itself."""
    return start_server(ROOT / "models/small", "--model-name", "small")


@pytest.fixture(scope="session")
def seeing_server(start_server, tmp_path_factory):
    """A synthetic checkpoint with a vision tower: what it says means nothing."""
    folder = tmp_path_factory.mktemp("vision") / "checkpoint"
    make_seeing_checkpoint(folder)
    return start_server(folder, "--model-name", "seeing")


@pytest.fixture
def client(server):
    return server.openai()


@pytest.fixture
def claude(server):
    return server.anthropic()


def wait_until(condition, seconds=20):
    """Waits for something that happens soon; bounded."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()
