"""A running `mdi serve` with the small model, and headless Chromium (Debian's) driven by Selenium.

MDI names the program (ctest sets it); MDI_PAGE_URL, if set, a server that runs already."""
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from driver import Page

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("MDI", str(ROOT / "build/release/mdi"))


class Server:
    """One `mdi serve` on a free port of 127.0.0.1, ended by SIGTERM."""

    def __init__(self, *options, model=ROOT / "models/small"):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        command = [PROGRAM, "serve", str(model), *(() if "--listen" in options else ("--listen", "127.0.0.1:0")), *options]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            ready = re.search(r"ready on (http://\S+)", self.text())
            if ready:
                self.url = ready[1]
                return
            time.sleep(0.05)
        self.process.kill()
        raise RuntimeError(f"the server did not get ready:\n{self.text()}")

    def text(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text()

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=30)


@pytest.fixture(scope="session")
def server_url():
    if "MDI_PAGE_URL" in os.environ:
        yield os.environ["MDI_PAGE_URL"]
        return
    server = Server()
    yield server.url
    assert server.stop() == 0, server.text()


@pytest.fixture
def start_server():
    """Starts further servers with options of their own."""
    started = []

    def start(*options, **more):
        started.append(Server(*options, **more))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.stop()


@contextlib.contextmanager
def start_browser():
    """Chromium without a window, with a profile that is thrown away."""
    profile = tempfile.mkdtemp(prefix="page-test-")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,800",
                     "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium has none for root; the profile is thrown away
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()
        shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture(scope="session")
def browser():
    with start_browser() as driver:
        yield driver


@pytest.fixture
def page(browser, server_url):
    """The page as a new visitor sees it."""
    page = Page(browser, server_url)
    page.colours("light")
    page.forget()
    page.open()
    yield page
    page.size(1280, 800)
    assert page.problems() == []
