"""The pictures in docs/images, from a running server with the small model: take_pictures.py URL FOLDER"""
import pathlib
import sys
import time

from conftest import start_browser
from driver import Page
from selenium.webdriver.common.keys import Keys

QUIET = {"temperature": "0.6", "top_p": "0.9", "effort": "none"}


def first_conversations(page):
    page.settings(**QUIET, seed="4")
    for question in ("Quote a verse of the Bible.", "What is a lighthouse?", "What does LGPL mean?"):
        page.run("document.getElementById('new-chat').click()")
        page.say(question)
    page.run("document.getElementById('new-chat').click()")


def shoot(page, path):
    page.field.click()
    page.run("document.activeElement.blur()")
    time.sleep(0.5)
    path.write_bytes(page.browser.get_screenshot_as_png())


def main(url, folder):
    folder = pathlib.Path(folder)
    with start_browser() as browser:
        page = Page(browser, url)
        page.colours("light")
        page.size(1280, 800)
        page.forget()
        page.open()
        first_conversations(page)
        page.settings(seed="1", max_tokens="160", temperature="0")
        page.click("Hide parameters")
        page.say("Hello!")
        page.say("What is a sailing ship?")
        page.settings(seed="7", temperature="0.6", effort="high")
        page.click("Hide parameters")
        page.say("Quote a verse of the Bible.")
        page.one(".turn.last .reasoning summary").click()
        page.settings(effort="none", seed="9")
        page.click("Hide parameters")
        page.say("What is a lantern?")
        page.settings(seed="4")
        page.click("Hide parameters")
        page.click("Another answer")
        page.idle()
        shoot(page, folder / "light.png")

        page.colours("dark")
        page.run("document.getElementById('new-chat').click()")
        page.settings(tools='[\n  {"name": "get_weather", "strict": true,\n   "parameters": {"type": "object",\n    "properties": {"place": {"enum": ["Berlin", "Paris"]}},\n    "required": ["place"], "additionalProperties": false}}\n]',
                      tool_choice="get_weather", seed="3")
        page.say("How is the weather in Berlin?")
        page.settings(tool_choice="none", max_tokens="60")
        page.one(".results textarea").send_keys('{"sky": "clear", "celsius": 21}', Keys.ENTER)
        page.until("return document.querySelectorAll('.turn.assistant').length === 2")
        page.idle()
        page.run("document.getElementById('params').scrollTop = 99999")
        shoot(page, folder / "dark.png")

        page.colours("light")
        page.size(390, 780)
        page.open("/")
        page.settings(tools="", seed="12", effort="high", max_tokens="120")
        page.click("Hide parameters")
        page.say("What is a bridge?")
        page.settings(effort="none", seed="5")
        page.click("Hide parameters")
        page.say("What is a harbour?")
        shoot(page, folder / "phone.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
