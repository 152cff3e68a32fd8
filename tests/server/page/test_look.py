"""How it looks and how it is reached: themes, a phone, the keyboard alone, and axe's rules."""
import pytest
from selenium.webdriver.common.keys import Keys

from driver import delta

RICH = ("# Ships\n\nA **ship** with `sails_and_a_very_long_identifier_that_does_not_break_anywhere_at_all_really` is [old](https://example.com/" + "x" * 90 + ").\n\n"
        "| Name | Year | Length in metres | Best day's run | Where she is now |\n|---|---|--:|---|---|\n| Cutty Sark | 1869 | 85.4 | 363 miles | Greenwich |\n\n"
        "```python\nprint('a line of code that is much longer than any telephone is wide, so it scrolls by itself')  # yes\n```\n\n> quoted\n\n1. one\n   - two\n" + "w" * 200)
CALL = [{"index": 0, "id": "c1", "function": {"name": "weather_at_a_place", "arguments": '{"place": "' + "x" * 120 + '"}'}}]


def fill(page):
    page.play([delta(reasoning_content="I think about ships."), delta(content=RICH), delta("stop"),
               {"choices": [], "usage": {"prompt_tokens": 1240, "completion_tokens": 180, "prompt_tokens_details": {"cached_tokens": 1152},
                                         "completion_tokens_details": {"reasoning_tokens": 12}}}])
    page.say("What is a ship, " + "and why" * 30 + "?")
    page.click("Another answer")
    page.idle()
    page.run("document.querySelector('.reasoning').open = true")
    page.run("window.fetch = null")
    page.say("And now an error")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page, scheme):
    page.colours(scheme)
    assert page.audit() == []
    fill(page)
    page.settings(temperature="9", tools="[", format="json_schema", effort="custom")
    assert page.audit() == []
    page.click("Hide parameters")
    page.play([delta(tool_calls=CALL), delta("tool_calls")])
    page.say("Call it")
    page.field.send_keys("x")
    page.run("document.getElementById('open-help').click()")
    assert page.audit() == []
    page.press(Keys.ESCAPE)
    assert page.audit() == []


def test_light_dark_and_as_the_system(page):
    background = "return getComputedStyle(document.body).backgroundColor"
    light = page.run(background)
    page.colours("dark")
    page.until("return document.documentElement.dataset.theme === 'dark'")
    dark = page.run(background)
    assert dark != light
    page.one("#theme").click()
    assert page.run(background) == light and page.one("#theme").accessible_name == "Theme: light"
    page.reload()
    assert page.run(background) == light
    page.chord(Keys.ALT, "t")
    page.chord(Keys.ALT, "t")
    assert page.run(background) == dark and page.one("#theme").accessible_name == "Theme: as the system"


def test_a_phone_needs_no_sideways_scrolling(page):
    page.size(360, 740)
    page.reload()
    fill(page)
    page.play([delta(tool_calls=CALL), delta("tool_calls")])
    page.say("Call it")
    inside = """const wide = [document.documentElement, document.getElementById('scroller'), document.getElementById('main')]
      .filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.id || 'page');
      const out = [...document.querySelectorAll('#top *, #dock *, .turn, .actions *, #sidebar *, #params *')].filter((e) => e.offsetParent && !e.closest('.unseen, svg') &&
        (e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1)).map((e) => e.outerHTML.slice(0, 80));
      return [...wide, ...out];"""
    assert page.run(inside) == []
    assert page.one("#composer-text").value_of_css_property("font-size") == "16px"
    page.one("#open-sidebar").click()
    assert page.one("#sidebar").is_displayed() and page.run(inside) == []
    page.press(Keys.ESCAPE)
    assert not page.one("#sidebar").is_displayed()
    page.one("#open-sidebar").click()
    page.one("#conversations a").click()
    assert not page.one("#sidebar").is_displayed()
    page.one("#open-params").click()
    assert page.run(inside) == []
    assert page.audit() == []


def test_the_keyboard_alone(page):
    assert page.browser.switch_to.active_element.get_attribute("id") == "composer-text"
    page.play([delta(content="An answer."), delta("stop")])
    page.press("First line", Keys.SHIFT + Keys.ENTER, Keys.NULL, "second line", Keys.ENTER)
    page.idle()
    assert page.questions() == ["First line\nsecond line"]
    page.press(Keys.ARROW_UP)
    assert page.field.get_attribute("value") == "First line\nsecond line"
    page.press(Keys.ESCAPE)
    assert page.field.get_attribute("value") == ""
    page.press(Keys.ARROW_UP, " again", Keys.ENTER)
    page.idle()
    assert page.branch() == ["2 / 2"]
    page.chord(Keys.ALT, Keys.ARROW_UP)
    page.chord(Keys.ALT, Keys.ARROW_UP)
    assert page.run("return document.activeElement.className").startswith("turn user")
    page.press(Keys.ARROW_LEFT)
    page.until("return document.querySelector('.branches span').textContent === '1 / 2'")
    page.chord(Keys.ALT, Keys.ARROW_DOWN)
    assert page.run("return document.activeElement.className").startswith("turn assistant")
    page.press("r")
    page.idle()
    assert page.branch() == ["1 / 2", "2 / 2"]
    page.run("document.querySelector('.turn').focus()")
    page.press("?")
    assert page.one("dialog[open]").accessible_name == "Keyboard"
    page.press(Keys.ESCAPE)
    page.until("return document.querySelector('dialog') === null")
    page.press("/")
    page.chord(Keys.ALT, "n")
    page.until("return document.querySelectorAll('.turn').length === 0")
    page.chord(Keys.CONTROL, "k")
    page.press("second line", Keys.ARROW_DOWN, Keys.ENTER)
    page.until("return document.querySelectorAll('.turn').length === 2")
    page.chord(Keys.ALT, "p")
    assert page.one("#params").is_displayed()
    page.press(Keys.ESCAPE)
    assert not page.one("#params").is_displayed()
    # Every control on the way has a name and a visible focus.
    seen = []
    page.run("document.querySelector('.skip').focus()")
    for _ in range(60):
        focused = page.browser.switch_to.active_element
        seen.append(focused.accessible_name)
        assert seen[-1], focused.get_attribute("outerHTML")
        if focused.get_attribute("id") == "send" or (focused.get_attribute("id") == "effort"):
            break
        page.press(Keys.TAB)
    assert "Message" in seen and "New conversation" in seen and "Another answer" in seen


def test_many_turns_stay_smooth(page):
    page.run("""window.made = import('/page/tree.js').then(async (tree) => {
      const { saveConversation } = await import('/page/store.js');
      const { emptyAnswer } = await import('/page/answer.js');
      const c = tree.newConversation();
      let below = null;
      for (let i = 0; i < 300; i += 1) {
        below = tree.addNode(c, below, {role: 'user', text: `Question ${i}`, images: []}).id;
        below = tree.addNode(c, below, {...emptyAnswer('m'), state: 'done', content: arguments[0]}).id;
      }
      await saveConversation(c);
      return c.id;
    }); """.replace("arguments[0]", "'# T\\n\\nSome **text** here.\\n\\n- a\\n- b\\n\\n```py\\nx = 1\\n```\\n\\n'.repeat(4)"))
    identity = page.browser.execute_async_script("window.made.then(arguments[0])")
    page.open(f"/#/{identity}")
    assert page.run("return document.querySelectorAll('.turn').length") == 600
    page.play([delta(content="word ") for _ in range(300)] + [delta("stop")], wait=4)
    page.run("""window.frames_ = []; let last = performance.now();
      const tick = (now) => { window.frames_.push(now - last); last = now; requestAnimationFrame(tick); }; requestAnimationFrame(tick);""")
    page.say("Go on")
    frames = page.run("return window.frames_.slice(2)")
    slow = [f for f in frames if f > 100]
    assert len(frames) > 40 and len(slow) < len(frames) / 10, (len(frames), slow)
