"""The server's page in a real browser: it chats, stops, regenerates, edits, asks for a key, compares two models and lets no text of
a model become markup. Usage: chat_page.py COMMAND ROOT WORKDIR [FOLDER for screenshots]"""
import atexit
import json
import math
import os
import subprocess
import sys
import time
import urllib.request

command, root, work = sys.argv[1:4]
pictures = sys.argv[4] if len(sys.argv) > 4 else None
sys.path.insert(0, os.path.join(root, "tests", "report"))
from browser import Browser  # noqa: E402

tiny = os.path.join(root, "models", "tiny")
ENTER, ESCAPE, UP, RIGHT = ("Enter", 13), ("Escape", 27), ("ArrowUp", 38), ("ArrowRight", 39)


class Server:
    def __init__(self, *arguments):
        self.log = os.path.join(work, "page.log")
        with open(self.log, "w") as file:
            self.process = subprocess.Popen([command, "serve", *arguments, "--port", "0", "--device", "cpu", "--precision", "f32"], stderr=file)
        atexit.register(self.process.kill)
        until = time.time() + 60
        self.url = None
        while not self.url:
            assert self.process.poll() is None and time.time() < until, open(self.log).read()
            for line in open(self.log):
                if line.endswith("\n") and json.loads(line).get("event") == "ready":
                    self.url = json.loads(line)["url"]
            time.sleep(0.05)

    def ask(self, path, body=None):
        with urllib.request.urlopen(self.url + path, json.dumps(body).encode() if body is not None else None, timeout=60) as answer:
            return json.loads(answer.read()) if "json" in answer.headers["Content-Type"] else answer.read().decode()

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def wait(page, expression, seconds=60):
    until = time.time() + seconds
    while not page.run(expression):
        assert time.time() < until, expression + " is " + str(page.run(expression)) + "; " + str(page.complaints)
        time.sleep(0.05)
    page.settle()


def press(page, key, **more):
    name, code = key
    for kind in ("rawKeyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=name, code=more.get("code", name), windowsVirtualKeyCode=code,
                  modifiers=more.get("modifiers", 0))
    page.settle()


def open_page(page, server, dark=False, phone=False):
    page.view(*((390, 844) if phone else (1280, 860)), dark, phone)
    page.visit(server.url + "/")
    wait(page, "document.body.dataset.ready === 'yes'")


def write(page, text):
    page.run("byId('input').focus()")
    page.call("Input.insertText", text=text)
    press(page, ENTER)


def idle(page):
    wait(page, "document.body.dataset.running === 'no'")


def set_options(page, **options):
    page.run("byId('settings-open').click()")
    for name, value in options.items():
        page.run("(() => { const f = byId('s-%s'); if (f.type === 'checkbox') f.checked = %s; else f.value = %s; })()"
                 % (name, json.dumps(value), json.dumps(str(value))))
    page.run("byId('settings-close').click()")
    wait(page, "!byId('settings').open")


def answers(page):
    return page.run("[...document.querySelectorAll('.answer .text')].map((e) => e.textContent)")


def picture(page, name):
    if pictures:
        page.settle()
        page.screenshot(os.path.join(pictures, name + ".png"))


def fits(page, what):
    assert page.run("document.documentElement.scrollWidth <= innerWidth && byId('log').scrollWidth <= byId('log').clientWidth"), what + " is too wide"


def flat(text):
    return " ".join(text.split())


def text_cannot_become_markup(page):
    hostile = ("<img src=x onerror=alert(1)> <script>alert(1)</script> [a](javascript:alert(1)) [b](data:text/html,x) **<b onclick=x>**\n\n"
               "| <i>a</i> | b |\n|---|---|\n| <svg onload=x> | `<u>` |\n\n```html\"><script>\n<script>alert(1)</script>\n```\n# <h1>\n- <a href=x>\n> <p>")
    html, text, names = page.run("""(() => { const d = make("div"); d.append(...markdown(%s)); return [d.outerHTML, d.textContent,
        [...d.querySelectorAll("*")].map((e) => e.tagName)]; })()""" % json.dumps(hostile))
    assert not set(names) & {"IMG", "SCRIPT", "SVG", "B", "I", "U", "A", "H1"}, names
    assert "<script>alert(1)</script>" in text and "<img src=x onerror=alert(1)>" in text, html
    assert page.run("(() => { try { document.body.innerHTML = '<b>x</b>'; return 'let through'; } catch { return 'refused'; } })()") == "refused"
    page.complaints = [c for c in page.complaints if "TrustedHTML" not in c]


def markdown_is_rendered(page):
    cases = [
        ("a **b** *c* `d` ~~e~~", "<p>a <strong>b</strong> <em>c</em> <code>d</code> <del>e</del></p>"),
        ("snake_case_name 2*3*4", "<p>snake_case_name 2*3*4</p>"),
        ("# One\ntwo\n\nthree", "<h2>One</h2><p>two</p><p>three</p>"),
        ("1. a\n2. b\n   - c\n   - d\n3. e", '<ol start="1"><li>a</li><li>b<ul><li>c</li><li>d</li></ul></li><li>e</li></ol>'),
        ("> a\n> b", "<blockquote><p>a\nb</p></blockquote>"),
        ("[x](https://a.example/y)", '<p><a href="https://a.example/y" rel="noopener noreferrer nofollow" target="_blank">x</a></p>'),
        ("<think>hm</think>\nyes", "<details><summary>Thoughts</summary><p>hm</p></details><p>yes</p>"),
        ("---", "<hr>"), ("unclosed `code and **bold", "<p>unclosed `code and **bold</p>"),
    ]
    for source, want in cases:
        got = page.run("(() => { const d = make('div'); d.append(...markdown(%s)); return d.innerHTML; })()" % json.dumps(source))
        assert got == want, (source, got, want)
    code = page.run("""(() => { const d = make("div"); d.append(...markdown("```c\\nint x = 1; // one\\n")); const p = d.querySelector("pre");
        return [p.textContent, d.querySelector(".k").textContent, d.querySelector(".c").textContent]; })()""")
    assert code == ["int x = 1; // one\n", "int", "// one"], code
    long = page.run("(() => { const t = performance.now(); markdown('**a* _b `c [d]( '.repeat(4000)); return performance.now() - t; })()")
    assert long < 3000, long


def chat(page, server):
    open_page(page, server)
    picture(page, "empty")
    fits(page, "the page")
    text_cannot_become_markup(page)
    open_page(page, server)
    markdown_is_rendered(page)
    set_options(page, temperature=0, max_tokens=40, system="Be short.")
    write(page, "Where is the house?")
    idle(page)
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Where is the house?"}]
    body = {"messages": messages, "temperature": 0, "max_tokens": 40}
    want = server.ask("/v1/chat/completions", body)["choices"][0]["message"]["content"]
    rendered = page.run("(() => { const d = make('div'); d.append(...markdown(%s)); return d.textContent; })()" % json.dumps(want))
    assert answers(page) == [rendered], (answers(page), rendered)
    facts = page.run("document.querySelector('.facts').textContent")
    assert "tokens/s" in facts and "first after" in facts and "prompt tokens cached" in facts, facts
    # the second message: the conversation goes with it, and its beginning is cached
    write(page, "And the garden?")
    idle(page)
    more = messages + [{"role": "assistant", "content": want}, {"role": "user", "content": "And the garden?"}]
    second = server.ask("/v1/chat/completions", {**body, "messages": more})["choices"][0]["message"]["content"]
    assert flat(answers(page)[1]) == flat(page.run("(() => { const d = make('div'); d.append(...markdown(%s)); return d.textContent; })()" % json.dumps(second)))
    cached = int(page.run("document.querySelectorAll('.facts')[1].textContent").split(" prompt tokens")[0].split(" · ")[-1].split()[0])
    assert cached >= 16, cached
    picture(page, "chat")
    # regenerate, by keyboard: greedy, so the same
    before = answers(page)
    press(page, ("r", 82), code="KeyR", modifiers=1)
    idle(page)
    assert answers(page) == before
    # edit the first message: what follows is gone
    page.run("document.querySelector('.said .acts button').click()")
    page.run("document.activeElement.select()")
    page.call("Input.insertText", text="Who are you?")
    press(page, ENTER)
    idle(page)
    assert page.run("[...document.querySelectorAll('.words')].map((e) => e.textContent)") == ["Who are you?"] and len(answers(page)) == 1
    press(page, UP)
    assert page.run("document.activeElement.value") == "Who are you?"
    press(page, ESCAPE)
    # stop
    set_options(page, max_tokens=400, temperature=1)
    page.run("byId('new').click()")
    write(page, "Tell me everything.")
    wait(page, "document.querySelector('.facts')?.textContent.includes('tokens/s')")
    press(page, ESCAPE)
    idle(page)
    assert page.run("byId('status').textContent") in ("Stopped.", ""), page.run("byId('status').textContent")
    until = time.time() + 20
    while "neuronmlp_num_requests_running 0" not in server.ask("/metrics"):
        assert time.time() < until
    # shading, token by token with the keyboard
    page.run("byId('shade').click()")
    set_options(page, max_tokens=12, temperature=0)
    page.run("byId('new').click()")
    write(page, "Hello")
    idle(page)
    n = page.run("document.querySelectorAll('.tokens span[data-i]').length")
    assert 1 <= n <= 12, n
    page.run("document.querySelector('.tokens').focus()")
    press(page, RIGHT)
    assert page.run("!byId('tip').hidden && byId('tip').textContent.includes('%')")
    page.run("byId('shade').click()")
    for theme in ("light", "dark"):
        page.run("byId('theme').click()")
        assert page.run("document.documentElement.dataset.theme") == theme
    page.run("byId('theme').click()")
    page.run("byId('settings-open').click()")
    picture(page, "settings")
    page.run("byId('settings-reset').click(); byId('settings-close').click()")
    wait(page, "settings.temperature === 0.7 || settings.temperature === '0.7'")


def agreement_by_hand(server, answer, promptly, other):
    """Share of the answer's tokens that `other` would choose, asked token by token."""
    ids = server.ask("/tokenize", {"content": promptly})["tokens"]
    agreed = 0
    for token in answer["ids"]:
        reply = server.ask("/v1/completions", {"model": other, "prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 1})
        agreed += reply["choices"][0]["logprobs"]["token_ids"][0] == token
        ids.append(token)
    return agreed


def compare(page, server, names):
    page.run("localStorage.clear()")
    open_page(page, server)
    prompt = "The old house stood at the end of the road, and"
    set_options(page, max_tokens=24)
    write(page, prompt)
    idle(page)
    assert page.run("[...document.querySelectorAll('.answer h3')].map((e) => e.textContent)") == names
    for i, text in enumerate(answers(page)):
        reply = server.ask("/v1/completions", {"model": names[i], "prompt": prompt, "temperature": 0, "max_tokens": 24, "logprobs": 1})["choices"][0]
        assert text == reply["text"], (text, reply["text"])
        levels = page.run("[...document.querySelectorAll('.answer')[%d].querySelectorAll('.tokens span')].map((e) => +e.className[1])" % i)
        want = [sum(math.exp(p) < bound for bound in (0.8, 0.5, 0.25, 0.1, 0.03)) for p in reply["logprobs"]["token_logprobs"]]
        assert levels == want, (levels, want)
        n = agreement_by_hand(server, {"ids": reply["logprobs"]["token_ids"]}, prompt, names[1 - i])
        told = page.run("document.querySelectorAll('.agree > div')[%d].textContent" % (2 + i))
        assert told.startswith(names[1 - i]) and "(%d of 24)" % n in told, (told, n)
    picture(page, "compare")
    box = page.run("(() => { const b = document.querySelectorAll('.tokens span')[5].getBoundingClientRect(); return [b.x + b.width / 2, b.y + 8]; })()")
    page.mouse("mouseMoved", *box)
    assert page.run("!byId('tip').hidden && byId('tip').textContent.includes(%s)" % json.dumps(names[1]))
    picture(page, "compare-token")
    page.mouse("mouseMoved", 5, 5)
    page.run("document.querySelector('.legend button').click()")
    assert page.run("document.querySelector('.legend button').textContent") == "Shaded by the other model"
    page.run("document.querySelector('.legend button').click()")
    page.view(1280, 860, True)
    picture(page, "compare-dark")
    page.view(390, 844, False, True)
    page.settle()
    fits(page, "the comparison on a phone")
    picture(page, "compare-phone")
    small = page.run("[...document.querySelectorAll('button')].filter((b) => b.offsetParent && b.getBoundingClientRect().height < 24).length")
    assert small == 0, small
    page.run("byId('settings-open').click()")
    fits(page, "settings on a phone")
    page.run("byId('settings-close').click()")
    # alone again
    page.run("byId('compare').click()")
    write(page, prompt)
    idle(page)
    assert len(answers(page)) == 1


def key(page):
    path = os.path.join(work, "key")
    with open(path, "w") as file:
        file.write("correct horse\n")
    server = Server(tiny, "--api-key-file", path)
    page.view(1280, 860, False)
    page.visit(server.url + "/")
    for given in ("wrong", "correct horse"):
        wait(page, "byId('key').open")
        picture(page, "key")
        page.run("byId('key-value').focus()")
        page.call("Input.insertText", text=given)
        page.run("byId('key-ok').click()")
        if given == "wrong":
            wait(page, "byId('key').open && !byId('key-wrong').hidden")
    wait(page, "document.body.dataset.ready === 'yes'")
    page.complaints = [c for c in page.complaints if "401" not in c]
    server.stop()


chatty = os.path.join(work, "chatty")
os.mkdir(chatty)
for name in ("config.json", "model.safetensors"):
    os.symlink(os.path.join(tiny, name), os.path.join(chatty, name))
with open(os.path.join(tiny, "tokenizer.json"), encoding="utf-8") as file:
    words = file.read().replace("<|begin_of_text|>", "<|im_start|>").replace("<|end_of_text|>", "<|im_end|>")
with open(os.path.join(chatty, "tokenizer.json"), "w", encoding="utf-8") as file:
    file.write(words)
reduced = os.path.join(work, "tiny-20")
subprocess.run([command, "compress", tiny, "-o", reduced, "--ratio", "0.2", "--alloc", "uniform", "--calib-tokens", "2048", "--recover", "none"],
               check=True, capture_output=True)

browser = Browser()
try:
    one = Server(chatty)
    chat(browser, one)
    one.stop()
    two = Server(tiny, "--compare", reduced)
    compare(browser, two, ["tiny", "tiny-20"])
    two.stop()
    key(browser)
    assert not browser.complaints, browser.complaints
    elsewhere = [url for url in browser.requests if not url.startswith(("http://127.0.0.1:", "data:", "about:"))]
    assert not elsewhere, elsewhere
finally:
    browser.close()
print("ok")
