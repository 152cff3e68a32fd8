"""What a person does on the page and sees there, in words."""
import json

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

# The small model ends its answers soon. This forbids it the end (token 1), as any client may.
LONG = """
const real = window.fetch;
window.fetch = (path, options) => {
  if (options?.body) options = {...options, body: JSON.stringify({...JSON.parse(options.body), logit_bias: {1: -100}, max_tokens: %d})};
  return real(path, options);
};
"""

# The server's part played by a list of chunks: what the model of these tests cannot write.
STREAM = """
const [chunks, wait] = arguments;
const real = window.fetch;
window.asked = [];
window.fetch = async (path, options) => {
  if (path !== '/v1/chat/completions') return real(path, options);
  window.asked.push(JSON.parse(options.body));
  const encoder = new TextEncoder();
  const stream = new ReadableStream({ async start(controller) {
    for (const chunk of chunks) {
      controller.enqueue(encoder.encode(`data: ${chunk === '[DONE]' ? chunk : JSON.stringify(chunk)}\\n\\n`));
      if (wait) await new Promise((resolve) => setTimeout(resolve, wait));
    }
    controller.close();
  } });
  return new Response(stream, { status: 200, headers: { 'content-type': 'text/event-stream' } });
};
"""


def delta(finish=None, **fields):
    return {"model": "small", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


class Page:
    def __init__(self, browser, url):
        self.browser, self.url = browser, url

    # -- the page itself
    def forget(self):
        """Nothing is kept of what an earlier visitor left."""
        self.browser.get("about:blank")
        self.browser.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": self.url, "storageTypes": "all"})
        self.browser.get_log("browser")

    def open(self, address="/"):
        self.browser.get("about:blank")
        self.browser.get(self.url + address)
        self.until("return document.documentElement.dataset.ready === 'yes'")

    def reload(self):
        self.browser.refresh()
        self.until("return document.documentElement.dataset.ready === 'yes'")

    def size(self, width, height):
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})

    def colours(self, scheme):
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]})

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def until(self, script, *arguments, seconds=20):
        """Waits until the script gives something true, and gives it."""
        return WebDriverWait(self.browser, seconds, poll_frequency=0.05).until(
            lambda browser: browser.execute_script(script, *arguments), f"never true: {script}")

    def problems(self):
        """Errors that the browser has reported, other than answers that a test provokes."""
        return [entry["message"] for entry in self.browser.get_log("browser")
                if entry["level"] == "SEVERE" and "Failed to load resource" not in entry["message"]]

    # -- elements
    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def button(self, label, inside="body"):
        """The last button of this name, hidden ones (those of a turn without the pointer) too."""
        found = self.run("return [...document.querySelectorAll(`${arguments[0]} button`)].filter((b) => !b.closest('[hidden]') && "
                         "(b.getAttribute('aria-label') ?? b.textContent.trim()) === arguments[1]).at(-1)", inside, label)
        assert found, f"no button {label!r} in {inside}"
        return found

    def click(self, label, inside="body"):
        # Tools of a turn show when the pointer is there; a click by script needs no pointer.
        self.run("arguments[0].click()", self.button(label, inside))

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    @property
    def field(self):
        return self.one("#composer-text")

    def press(self, *keys):
        self.browser.switch_to.active_element.send_keys(*keys)

    def chord(self, modifier, key):
        from selenium.webdriver.common.action_chains import ActionChains
        ActionChains(self.browser).key_down(modifier).send_keys(key).key_up(modifier).perform()

    # -- chatting
    def long_answers(self, tokens=3000):
        self.run(LONG % tokens)

    def play(self, chunks, wait=0):
        self.run(STREAM, [*chunks, "[DONE]"], wait)

    def say(self, text, wait=True):
        self.field.send_keys(text, Keys.ENTER)
        if wait:
            self.idle()

    def idle(self, seconds=30):
        """Waits until the last turn is an answer that has ended."""
        self.until("const last = [...document.querySelectorAll('.turn.assistant')].at(-1);"
                   "return last && last.getAttribute('aria-busy') === 'false' && document.getElementById('stop').hidden", seconds=seconds)

    def answers(self):
        return self.texts(".turn.assistant .prose:not(.reasoning-text)")

    def questions(self):
        return self.texts(".turn.user .said")

    def branch(self):
        """"2 / 3" of each turn that has branches."""
        return self.texts(".turn .branches:not([hidden]) span")

    def kept(self):
        """Titles in the list."""
        return self.texts("#conversations a > span:first-child")

    def settings(self, **params):
        """Parameters, typed into the panel."""
        if self.one("#params").get_attribute("hidden") is not None:
            self.click("Parameters", "#top")
        for name, value in params.items():
            self.run("const [name, value] = arguments; const field = document.getElementById(`param-${name}`);"
                     "field.value = value; field.dispatchEvent(new Event('input', {bubbles: true}))", name, value)

    def audit(self):
        """axe's findings for what is shown now."""
        from axe_selenium_python import Axe
        axe = Axe(self.browser)
        axe.inject()
        found = axe.run(options={"runOnly": ["wcag2a", "wcag2aa", "section508", "best-practice"]})
        assert found["passes"]
        return [json.dumps([v["id"], v["help"], [n["html"][:160] for n in v["nodes"]]]) for v in found["violations"]]
