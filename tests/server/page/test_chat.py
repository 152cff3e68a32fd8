"""A conversation with the small model: sending, streaming, stopping, branches, reasoning, tools, images, errors."""
import base64
import re
import struct
import subprocess
import zlib

from selenium.webdriver.common.keys import Keys

from conftest import PROGRAM
from driver import Page, delta

USAGE = {"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 32},
                                  "completion_tokens_details": {"reasoning_tokens": 4}}}


def png(path, width=8, height=8):
    rows = b"".join(b"\0" + b"\x20\x80\xc0" * width for _ in range(height))
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    data = (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    path.write_bytes(data)
    return data


def test_an_answer_streams_and_is_counted(page):
    page.long_answers(900)
    # Counted inside the page: from outside, a loaded machine may look only once before the end.
    page.run("""
        window.lengths = new Set();
        new MutationObserver(() => window.lengths.add(document.body.textContent.length))
            .observe(document.body, {childList: true, subtree: true, characterData: true});
    """)
    page.say("What is a sailing ship?")
    assert page.run("return window.lengths.size") > 3, "the text came in one piece"
    numbers = page.texts(".numbers")[0]
    assert "900 tokens" in numbers and "tokens/s" in numbers and "first after" in numbers and "prompt " in numbers and "cached" in numbers
    assert page.questions() == ["What is a sailing ship?"]
    assert page.kept() == ["What is a sailing ship?"]


def test_a_second_turn_is_cached(page):
    page.settings(effort="none")
    page.long_answers(300)
    page.say("Tell me about ships.")
    page.say("And about harbours?")
    cached = page.run("return document.querySelectorAll('.numbers')[1].textContent.match(/prompt ([\\d,]+), ([\\d,]+) cached/).slice(1)")
    prompt, hit = (int(n.replace(",", "")) for n in cached)
    assert 100 < hit < prompt


def test_stop_keeps_what_was_written(page):
    page.long_answers(7000)
    page.say("What is a horse?", wait=False)
    page.until("return document.querySelector('.turn.assistant .body').textContent.length > 120")
    page.press(Keys.ESCAPE)
    page.idle(seconds=5)
    assert page.texts(".note") == ["Stopped."]
    before = (page.answers(), page.texts(".numbers"), page.texts(".note"))
    page.reload()
    assert (page.answers(), page.texts(".numbers"), page.texts(".note")) == before


def test_retry_and_edit_make_branches(page):
    page.settings(temperature="1.2", max_tokens="30", effort="none")
    page.say("What is a lamp?")
    first = page.answers()
    page.click("Another answer")
    page.idle()
    assert page.branch() == ["2 / 2"]
    second = page.answers()
    assert second != first
    page.click("Previous branch")
    assert page.branch() == ["1 / 2"] and page.answers() == first
    page.click("Next branch")
    assert page.answers() == second

    page.click("Edit (makes a branch)")
    assert page.field.get_attribute("value") == "What is a lamp?"
    page.field.clear()
    page.say("What is a table?")
    assert page.questions() == ["What is a table?"] and page.branch() == ["2 / 2"]
    page.click("Previous branch")
    assert page.questions() == ["What is a lamp?"] and page.answers() == second

    page.click("Fork into a new conversation", ".turn.assistant")
    page.until("return document.getElementById('title').textContent === 'What is a lamp? (fork)'")
    assert page.answers() == second and page.branch() == []
    page.until("return document.querySelectorAll('#conversations a').length === 2")


def test_equal_seeds_give_equal_answers(page):
    page.settings(temperature="1", seed="11", max_tokens="24", effort="none")
    page.say("What is a bridge?")
    first = page.answers()
    page.click("Another answer")
    page.idle()
    assert page.answers() == first and page.branch() == ["2 / 2"]


def test_reasoning_is_folded(page):
    page.play([delta(reasoning_content="First I *count* "), delta(reasoning_content="the sails."), delta(content="Three."), delta("stop"), USAGE], wait=150)
    page.say("How many sails?", wait=False)
    page.until("return document.querySelector('.reasoning summary')?.textContent.startsWith('Thinking ')")
    page.idle()
    summary = page.texts(".reasoning summary")[0]
    assert summary.startswith("Thought for 0.") and summary.endswith(", 4 tokens")
    assert page.texts(".reasoning-text") == [""] and not page.one(".reasoning-text").is_displayed()
    page.one(".reasoning summary").click()
    page.until("return document.querySelector('.reasoning-text em')?.textContent === 'count'")
    assert page.one(".reasoning-text").is_displayed()
    assert page.answers() == ["Three."]


def test_reasoning_of_the_model_itself(page):
    page.settings(effort="high", max_tokens="200")
    page.say("What is a clock?")
    assert page.texts(".reasoning:not([hidden]) summary")[0].startswith("Thought for ")


def test_a_tool_call_is_shown_and_answered(page):
    page.settings(tools='[{"name": "weather", "strict": true, "parameters": {"type": "object", "properties": {"place": {"type": "string", "maxLength": 12}}, "required": ["place"], "additionalProperties": false}}]',
                  tool_choice="weather", max_tokens="200", effort="none", temperature="0")
    page.say("What is the weather?")
    assert page.texts(".call h3 span") == ["weather"]
    assert '{\n  "place": "' in page.texts(".call pre")[0]
    page.settings(tool_choice="none")
    field = page.one(".results textarea")
    field.send_keys('{"sky": "clear"}', Keys.ENTER)
    page.until("return document.querySelectorAll('.turn.assistant').length === 2")
    page.idle()
    assert page.texts(".result pre") == ['{"sky": "clear"}']
    assert page.all(".results") == [] and page.all(".error:not([hidden])") == []


def test_a_schema_is_followed(page):
    page.settings(format="json_schema", schema='{"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"], "additionalProperties": false}',
                  max_tokens="100", effort="none")
    page.say("When was it?")
    assert page.run("return Number.isInteger(JSON.parse(arguments[0]).year)", page.answers()[0])


def test_what_is_wrong_is_said_where_it_is(page):
    page.settings(temperature="7", tools="[{]")
    wrong = page.texts(".wrong:not([hidden])")
    assert wrong[0] == "Temperature is a number from 0 to 2" and "not JSON" in wrong[1]
    page.settings(temperature="", tools="")
    page.run("const real = window.fetch; window.fetch = (path, options) => real(path, options?.body ? {...options, body: options.body.replace('\"stream\":true', '\"stream\":true,\"temperature\":9')} : options)")
    page.say("Hello?")
    error = page.texts(".error:not([hidden])")[0]
    assert "temperature" in error and "400" in error
    page.open(page.run("return location.pathname + location.hash"))
    assert page.texts(".error:not([hidden]) p")[0] in error
    page.settings(max_tokens="10")
    page.click("Try again")
    page.idle()
    assert page.all(".error:not([hidden])") == [] and page.branch() == ["2 / 2"]


def test_images_are_added_shown_and_removed(page, tmp_path):
    png(tmp_path / "sea.png")
    blind = page.run("return fetch('/v1/models').then((r) => r.json()).then((m) => !m.data[0].input_modalities.includes('image'))")
    assert blind, "models/small has no vision tower"
    assert page.one("#attach").get_attribute("title") == "This model cannot see images"
    drop = """
      const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0));
      const transfer = new DataTransfer();
      for (const name of ['sea.png', 'sky.png']) transfer.items.add(new File([bytes], name, {type: 'image/png'}));
      if (arguments[1] === 'paste') document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: transfer, bubbles: true, cancelable: true}));
      else document.getElementById('main').dispatchEvent(new DragEvent(arguments[1], {dataTransfer: transfer, bubbles: true, cancelable: true}));"""
    data = base64.b64encode((tmp_path / "sea.png").read_bytes()).decode()
    page.run(drop, data, "dragenter")
    assert page.one("#drop").is_displayed()
    page.run(drop, data, "drop")
    page.until("return document.querySelectorAll('#attachments img').length === 2")
    assert not page.one("#drop").is_displayed()
    assert "cannot see images" in page.texts(".notice")[0]
    page.click("Remove sky.png")
    page.run(drop, data, "paste")
    page.until("return document.querySelectorAll('#attachments img').length === 3")
    page.field.send_keys("What is this?", Keys.ENTER)
    assert page.all(".turn") == [] and "cannot see images" in page.texts(".notice")[0]
    for _ in range(3):
        page.one("#attachments button").click()
    assert page.texts(".notice") == []


def test_images_go_with_the_message(page, tmp_path):
    page.play([delta(content="A sea."), delta("stop"), USAGE])
    page.until("return document.getElementById('model').textContent !== ''")
    page.run("document.getElementById('attach').disabled = false; import('/page/chat.js').then(({chat}) => { chat.models[0].input_modalities.push('image'); window.seeing = true; })")
    page.until("return window.seeing")
    png(tmp_path / "sea.png")
    page.one("#files").send_keys(str(tmp_path / "sea.png"))
    page.until("return document.querySelectorAll('#attachments img').length === 1")
    page.say("What is this?")
    content = page.run("return window.asked[0].messages.at(-1).content")
    assert [part["type"] for part in content] == ["image_url", "text"]
    assert base64.b64decode(content[0]["image_url"]["url"].split(",")[1]) == (tmp_path / "sea.png").read_bytes()
    page.reload()
    page.until("return document.querySelector('.pictures img')?.naturalWidth === 8")


def test_a_model_that_sees_gets_the_picture(page, start_server, browser, tmp_path):
    folder = tmp_path / "seeing"  # synthetic: what it says means nothing
    subprocess.run([PROGRAM, "synth", str(folder), "--preset", "tiny-vision", "--vocab", "512", "--quiet"], check=True, timeout=120)
    seeing = Page(browser, start_server(model=folder).url)
    seeing.forget()
    seeing.open()
    seeing.until("return document.getElementById('model').textContent !== ''")
    seeing.settings(max_tokens="6", effort="none")
    png(tmp_path / "sea.png", 64, 48)
    prompts = []
    for pictures in (0, 1):
        if pictures:
            seeing.one("#files").send_keys(str(tmp_path / "sea.png"))
            seeing.until("return document.querySelectorAll('#attachments img').length === 1")
        seeing.run("document.activeElement.blur()")
        seeing.say("Look")
        assert seeing.all(".error:not([hidden])") == []
        prompts.append(int(re.search(r"prompt ([\d,]+)", seeing.texts(".numbers")[0])[1].replace(",", "")))
        seeing.run("document.getElementById('new-chat').click()")
    assert prompts[1] > prompts[0] + 2, "the picture takes tokens"


def test_an_error_in_the_middle_keeps_the_text(page):
    page.play([delta(content="Half of "), {"error": {"message": "the engine has failed", "code": "engine_failed"}}])
    page.say("Go on")
    assert page.answers() == ["Half of"] and "the engine has failed" in page.texts(".error p")[0]


def test_a_long_answer_is_followed_until_the_reader_leaves(page):
    page.play([delta(content=f"Line {i} of a long answer.\n\n") for i in range(160)] + [delta("stop"), USAGE], wait=12)
    page.say("Tell me a lot", wait=False)
    at_end = "const s = document.getElementById('scroller'); return s.scrollHeight - s.scrollTop - s.clientHeight < 8"
    page.until("return document.getElementById('scroller').scrollHeight > 2000")
    page.until(at_end)
    page.run("const s = document.getElementById('scroller'); s.dispatchEvent(new WheelEvent('wheel', {deltaY: -300})); s.scrollTop -= 600;")
    place = page.run("return document.getElementById('scroller').scrollTop")
    page.idle()
    assert abs(page.run("return document.getElementById('scroller').scrollTop") - place) < 4
    assert page.one("#to-end").is_displayed()
    page.one("#to-end").click()
    page.until(at_end)
    assert not page.one("#to-end").is_displayed()


def test_a_server_that_is_away_and_comes_back(page, start_server, browser):
    server = start_server()
    away = Page(browser, server.url)
    away.open()
    away.until("return document.getElementById('model').textContent !== ''")
    assert server.stop() == 0
    away.say("Are you there?")
    assert away.texts(".error") == ["The server cannot be reached.Try again"]
    away.until("return document.querySelector('.notice')?.textContent.includes('cannot be reached')")
    start_server("--listen", server.url.removeprefix("http://"))
    away.until("return document.querySelector('.notice')?.textContent.includes('is back')")
    away.settings(max_tokens="10")
    away.click("Try again")
    away.idle()
    assert away.all(".error:not([hidden])") == []
