"""The page's modules without the page: the files in logic/, run by the browser that runs the page."""
import pathlib

import pytest

LOGIC = pathlib.Path(__file__).parent / "logic"
FILES = sorted(file.stem for file in LOGIC.glob("*.js") if file.stem != "harness")


@pytest.mark.parametrize("name", FILES)
def test_logic(page, name):
    body = (LOGIC / "harness.js").read_text() + (LOGIC / f"{name}.js").read_text()
    results = page.browser.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        f"(async () => {{ {body}\n return runAll(); }})().then(done, (error) => done({{start: String(error.stack ?? error)}}));")
    assert len(results) >= 3
    failed = [f"{case}: {error}" for case, error in results.items() if error]
    assert not failed, "\n\n".join(failed)
