"""No text becomes markup, no request goes elsewhere, and a key is asked for and kept no longer than wanted."""
import urllib.error
import urllib.request

from selenium.webdriver.common.keys import Keys

from driver import Page, delta

XSS = "<img src=x onerror=document.title='hit'><script>document.title='hit'</script> [a](javascript:alert(1)) ![p](https://example.com/p.png)"


def get(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, dict((k.lower(), v) for k, v in answer.headers.items()), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict((k.lower(), v) for k, v in error.headers.items()), error.read()


def test_text_stays_text(page):
    page.settings(max_tokens="5")
    page.say(XSS)
    assert page.questions() == [XSS]
    page.play([delta(reasoning_content=XSS), delta(content=XSS), delta(tool_calls=[{"index": 0, "id": XSS, "function": {"name": XSS, "arguments": XSS}}]),
               delta("tool_calls"), {"error": {"message": XSS}}])
    page.say("again")
    page.run("document.querySelectorAll('.reasoning').forEach((e) => { e.open = true; })")
    page.until("return [...document.querySelectorAll('.reasoning-text')].at(-1).textContent !== ''")
    page.click(f"Rename {page.kept()[0]}")
    page.one("dialog input").clear()
    page.one("dialog input").send_keys(XSS[:120], Keys.ENTER)
    page.until("return document.getElementById('title').textContent.startsWith('<img')")
    page.one("#search").send_keys("onerror")
    page.until("return document.querySelector('#conversations h2').textContent === 'Found'")
    assert page.run("return document.querySelectorAll('#thread img, #thread script, #conversations img, #top img').length") == 0
    assert page.run("return [...document.querySelectorAll('a')].filter((a) => a.href.startsWith('javascript')).length") == 0
    assert not page.browser.title.startswith("hit")


def test_nothing_is_asked_of_another_host(page):
    page.play([delta(content="![a](https://example.com/a.png) [b](https://example.com) https://example.com/c"), delta("stop")])
    page.say("Show me pictures")
    asked = page.run("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert len(asked) > 20 and all(name.startswith(page.url + "/") for name in asked), asked
    refused = page.run("""return new Promise((resolve) => {
      document.addEventListener('securitypolicyviolation', (event) => resolve(event.effectiveDirective));
      fetch('https://example.com/').catch(() => {}); })""")
    assert refused == "connect-src"
    assert "trusted" in page.run("try { document.body.innerHTML = '<b>x</b>'; return 'made'; } catch (e) { return e.message.toLowerCase(); }")
    page.browser.get_log("browser")  # the two refusals


def test_files_are_checked_by_their_hash(server_url):
    status, headers, body = get(server_url + "/")
    assert status == 200 and headers["content-type"] == "text/html; charset=utf-8" and b"<main" in body
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
    assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-cache"
    for name, kind in (("main.js", "text/javascript"), ("style.css", "text/css"), ("icon.svg", "image/svg+xml")):
        status, headers, body = get(f"{server_url}/page/{name}")
        assert status == 200 and headers["content-type"].startswith(kind) and body
        tag = headers["etag"]
        for known in (tag, f'"other", W/{tag}', "*"):
            status, headers, body = get(f"{server_url}/page/{name}", **{"If-None-Match": known})
            assert status == 304 and body == b"" and headers["etag"] == tag
        assert get(f"{server_url}/page/{name}", **{"If-None-Match": '"other"'})[0] == 200
    for path in ("/page/", "/page/none.js", "/page/../service.h", "/page/%2e%2e/%2e%2e/README.md", "/page/main.js/x"):
        assert get(server_url + path)[0] in (400, 404), path


def test_a_key_is_asked_for(page, start_server, browser, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("open-sesame-123456\n")
    keys.chmod(0o600)
    guarded = Page(browser, start_server("--api-key-file", str(keys)).url)
    guarded.forget()
    guarded.open()
    guarded.until("return document.querySelector('dialog[open] input[type=password]')")
    guarded.one("#key-field").send_keys("wrong", Keys.ENTER)
    guarded.until("return document.querySelector('dialog[open] #key-field')?.value === ''")
    guarded.one("#key-field").send_keys("open-sesame-123456", Keys.ENTER)
    guarded.until("return document.getElementById('model').textContent !== ''")
    guarded.settings(max_tokens="10")
    guarded.say("Hello")
    assert guarded.all(".error:not([hidden])") == []
    assert guarded.run("return Object.values({...localStorage}).includes('open-sesame-123456')") is False
    guarded.reload()
    guarded.until("return document.getElementById('model').textContent !== ''")
    guarded.settings()
    guarded.click("Forget the API key", "#params")
    guarded.open(guarded.run("return location.pathname + location.hash"))
    guarded.until("return document.querySelector('dialog[open]')")
    guarded.press(Keys.ESCAPE)
    guarded.say("Without a key", wait=False)
    guarded.until("return document.querySelector('dialog[open]')")
    guarded.one("#key-field").send_keys("open-sesame-123456")
    guarded.one("#key-remember").click()
    guarded.one("#key-field").send_keys(Keys.ENTER)
    guarded.idle()
    assert guarded.all(".error:not([hidden])") == []
    guarded.run("sessionStorage.clear()")
    guarded.reload()
    guarded.until("return document.getElementById('model').textContent !== ''")
    guarded.settings()
    guarded.click("Forget the API key", "#params")
    guarded.reload()
    guarded.until("return document.querySelector('dialog[open] #key-field')")
