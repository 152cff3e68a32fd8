"""The published description of the endpoints (docs/openapi.json) against a running server: schemathesis makes requests
from it, right ones and wrong ones, and no answer may be one that the description does not have."""
import json
import os
import pathlib
import subprocess
import sys
import urllib.request

import pytest
from conftest import ROOT

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "negative_data_rejection", "unsupported_method", "allow_header_conformance")
# Of each endpoint; a number and a seed, not a time, so that every machine asks the same.
EXAMPLES = os.environ.get("MDI_SCHEMATHESIS_EXAMPLES", "100")


@pytest.fixture(scope="module")
def small_answers(start_server):
    return start_server(ROOT / "models/small", "--model-name", "small", "--max-tokens", "4", "--max-length", "512")


def test_the_server_publishes_the_file(small_answers):
    with urllib.request.urlopen(small_answers.url + "/openapi.json", timeout=10) as answer:
        assert json.load(answer) == json.loads((ROOT / "docs/openapi.json").read_text())


def test_schemathesis(small_answers, tmp_path):
    program = pathlib.Path(sys.executable).parent / "schemathesis"
    run = subprocess.run(
        [program, "run", small_answers.url + "/openapi.json", "--url", small_answers.url, "--checks", ",".join(CHECKS),
         "--phases", "fuzzing", "--max-examples", EXAMPLES, "--workers", "1",
         "--request-timeout", "60", "--seed", "7", "--no-shrink", "--suppress-health-check", "all", "--warnings", "off",
         "--continue-on-failure"],
        cwd=tmp_path, capture_output=True, text=True, timeout=1200)
    assert run.returncode == 0, run.stdout[-12000:] + run.stderr[-2000:]
    # It has asked something of every endpoint.
    assert "No test cases" not in run.stdout, run.stdout[-4000:]
    with urllib.request.urlopen(small_answers.url + "/health", timeout=10) as answer:
        assert answer.status == 200
