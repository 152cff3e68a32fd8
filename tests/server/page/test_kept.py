"""What the browser keeps: conversations, parameters, drafts; search, names, files, and a full disk."""
import json
import time

from selenium.webdriver.common.keys import Keys

from driver import delta


def chat(page, *questions):
    page.play([delta(content="An answer about **ships**."), delta("stop")])
    for question in questions:
        page.run("document.getElementById('new-chat').click()")
        page.say(question)
        page.until("return document.querySelector('#conversations li.current a span')?.textContent === arguments[0]", question)


def test_a_reload_keeps_everything(page):
    page.settings(temperature="0.4", system="Be brief.", seed="5", max_tokens="20", effort="none")
    page.say("What is a lighthouse?")
    before = (page.answers(), page.questions(), page.texts(".numbers"))
    page.field.send_keys("a draft")
    page.reload()
    assert (page.answers(), page.questions(), page.texts(".numbers")) == before
    assert page.field.get_attribute("value") == "a draft"
    values = page.run("return ['temperature', 'system', 'seed', 'max_tokens', 'effort'].map((name) => document.getElementById(`param-${name}`).value)")
    assert values == ["0.4", "Be brief.", "5", "20", "none"]
    page.open("/")
    assert page.answers() == [] and page.kept() == ["What is a lighthouse?"]
    assert page.run("return document.getElementById('param-temperature').value") == "0.4"
    page.one("#conversations a").click()
    page.until("return document.querySelectorAll('.turn').length === 2")
    page.browser.back()
    page.until("return document.querySelectorAll('.turn').length === 0")


def test_an_answer_goes_on_behind_another_conversation(page):
    page.play([delta(content=f"{i} ") for i in range(60)] + [delta("stop")], wait=30)
    page.say("Count", wait=False)
    page.until("return document.querySelector('.turn.assistant .prose:not(.reasoning-text)')?.textContent.length > 5")
    page.run("document.getElementById('new-chat').click()")
    page.until("return document.querySelector('#conversations .live')")
    page.until("return !document.querySelector('#conversations .live')")
    page.one("#conversations a").click()
    page.until("return document.querySelector('.turn.assistant')?.textContent.includes('59')")


def test_a_reload_in_the_middle_says_so(page):
    page.long_answers(7000)
    page.say("What is a horse?", wait=False)
    time.sleep(2)
    page.reload()
    page.until("return document.querySelector('.note:not([hidden])')?.textContent.startsWith('Interrupted')")
    assert len(page.answers()[0] + page.texts(".reasoning-text")[0] + page.texts(".reasoning summary")[0]) > 10


def test_search_rename_delete(page):
    chat(page, "About lamps", "About horses", "About lanterns")
    assert page.kept() == ["About lanterns", "About horses", "About lamps"]
    page.one("#search").send_keys("HORSES about")
    page.until("return document.querySelectorAll('#conversations a').length === 1")
    assert page.texts("#conversations .excerpt")[0].startswith("About horses")
    page.one("#search").send_keys(Keys.ESCAPE)
    page.until("return document.querySelectorAll('#conversations a').length === 3")
    page.click("Rename About lamps")
    page.one("dialog input").clear()
    page.one("dialog input").send_keys("Oil lamps", Keys.ENTER)
    page.until("return document.querySelector('#conversations').textContent.includes('Oil lamps')")
    page.click("Delete About horses")
    page.click("Cancel", "dialog")
    assert "About horses" in page.kept()
    page.click("Delete About horses")
    page.click("Delete", "dialog")
    page.until("return document.querySelectorAll('#conversations a').length === 2")
    page.reload()
    assert sorted(page.kept()) == ["About lanterns", "Oil lamps"]


def test_export_and_import(page, tmp_path):
    chat(page, "About lamps", "About horses")
    page.run("""window.saved = new Promise((resolve) => {
      const real = URL.createObjectURL;
      URL.createObjectURL = (blob) => { blob.text().then(resolve); return real(blob); }; })""")
    page.browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.click("Export all")
    text = page.browser.execute_async_script("window.saved.then(arguments[0])")
    assert [c["title"] for c in json.loads(text)["conversations"]] != []
    page.forget()
    page.open()
    assert page.kept() == []
    (tmp_path / "in.json").write_text(text)
    page.one("#import-file").send_keys(str(tmp_path / "in.json"))
    page.until("return document.querySelectorAll('#conversations a').length === 2")
    page.one("#conversations a").click()
    page.until("return document.querySelector('.turn.assistant strong')?.textContent === 'ships'")
    (tmp_path / "bad.json").write_text('{"format": "other"}')
    page.one("#import-file").send_keys(str(tmp_path / "bad.json"))
    page.until("return document.querySelector('.notice')?.textContent.includes('not an export')")


def test_a_full_disk_is_said_and_the_page_goes_on(page):
    page.play([delta(content="An answer."), delta("stop")])
    quota = {"origin": page.url}
    page.browser.execute_cdp_cmd("Storage.overrideQuotaForOrigin", {**quota, "quotaSize": 1})
    page.say("Is there room?")
    page.until("return document.querySelector('.notice')?.textContent.includes('storage for this page is full')")
    assert page.answers() == ["An answer."] and page.kept() == ["Is there room?"]
    page.browser.execute_cdp_cmd("Storage.overrideQuotaForOrigin", quota)


def test_two_tabs_see_each_other(page):
    chat(page, "About lamps")
    first = page.browser.current_window_handle
    page.browser.switch_to.new_window("tab")
    try:
        page.open("/")
        page.play([delta(content="An answer."), delta("stop")])
        page.say("About tabs")
        page.browser.switch_to.window(first)
        page.until("return document.querySelector('#conversations').textContent.includes('About tabs')")
    finally:
        for handle in page.browser.window_handles:
            if handle != first:
                page.browser.switch_to.window(handle)
                page.browser.close()
        page.browser.switch_to.window(first)
