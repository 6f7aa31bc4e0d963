"""`run --chat` on a terminal. Usage: conversation.py COMMAND ROOT WORKDIR"""
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

command, root, work = sys.argv[1:4]
tiny = os.path.join(root, "models", "tiny")
common = ["--device", "cpu", "--precision", "f32", "--threads", "1"]

chatty = os.path.join(work, "chatty")
os.mkdir(chatty)
for name in ("config.json", "model.safetensors"):
    os.symlink(os.path.join(tiny, name), os.path.join(chatty, name))
with open(os.path.join(tiny, "tokenizer.json"), encoding="utf-8") as file:
    words = file.read().replace("<|begin_of_text|>", "<|im_start|>").replace("<|end_of_text|>", "<|im_end|>")
with open(os.path.join(chatty, "tokenizer.json"), "w", encoding="utf-8") as file:
    file.write(words)


class Terminal:
    def __init__(self, *arguments):
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(command, [command, "run", *arguments, *common])

    def read(self, pattern, seconds=60):
        """Everything up to and with what matches; what was read is gone."""
        until = time.time() + seconds
        while not (hit := re.search(pattern, self.seen, re.S)):
            assert time.time() < until, (pattern, self.seen)
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.fd, 65536).decode(errors="replace").replace("\r\n", "\n")
                except OSError:
                    raise AssertionError("it ended: " + self.seen) from None
        got, self.seen = self.seen[: hit.end()], self.seen[hit.end() :]
        return got

    def write(self, text):
        os.write(self.fd, text.encode())

    def say(self, text):
        """The answer and the line of facts behind it."""
        self.write(text + "\n")
        got = self.read(r"\[\d+ tokens[^\]]*\]\n\n> $")
        assert got.startswith(text), got  # the terminal's echo
        return re.fullmatch(r".*?\n(.*)\n(\[\d+ tokens[^\]]*\])\n\n> ", got[len(text) :], re.S).groups()

    def listen(self, seconds):
        """Hears what is there; False: nothing is left."""
        try:
            if select.select([self.fd], [], [], seconds)[0]:
                self.seen += os.read(self.fd, 65536).decode(errors="replace")
                return True
        except OSError:
            pass
        return False

    def end(self):
        until = time.time() + 30
        while time.time() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self.listen(0):  # last words
                    pass
                return os.waitstatus_to_exitcode(status)
            self.listen(0.05)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError("it does not end: " + self.seen)


def written(*messages):
    """The conversation in ChatML, by hand, and what the model says to it."""
    text = "".join("<|im_start|>%s\n%s<|im_end|>\n" % m for m in messages) + "<|im_start|>assistant\n"
    out = subprocess.run([command, "run", chatty, "-p", text, "--no-bos", "-n", "12", "--json", *common], check=True, capture_output=True)
    return json.loads(out.stdout)["text"]


def remembers_what_was_said():
    t = Terminal(chatty, "--chat", "--system", "Be short.", "-n", "12")
    t.read("> $")
    said = [("system", "Be short."), ("user", "Where is the house?")]
    text, facts = t.say("Where is the house?")
    assert text == written(*said), (text, written(*said))
    assert "0 of " in facts and "tokens/s" in facts, facts
    said += [("assistant", text), ("user", "And the garden?")]
    second, facts = t.say("And the garden?")
    assert second == written(*said), (second, written(*said))
    assert int(re.search(r"(\d+) of", facts[facts.index("ms"):]).group(1)) >= 16, facts
    again, _ = t.say("/again")
    assert again == second
    t.write("/new\n")
    t.read(r"forgotten\]\n\n> $")
    assert t.say("Where is the house?")[0] == text
    t.write("/what\n")
    assert "/again" in t.read(r"> $")
    t.write("\x04")
    assert t.end() == 0


def interrupts_stop_the_answer():
    t = Terminal(chatty, "--chat", "--ignore-eos", "--temp", "1")
    t.read("> $")
    t.write("\x03")
    t.read(r"leaves\]\n> $")
    for _ in range(2):
        t.write("Tell me everything.\n")
        t.read(r"everything\.\n.{20}")
        t.write("\x03")
        facts = t.read(r"\[\d+ tokens[^\]]*\]\n\n> $")
        assert "stopped]" in facts, facts
    t.write("/exit\n")
    assert t.end() == 0


def a_model_without_template_says_so():
    t = Terminal(tiny, "--chat")
    assert t.end() == 1 and "no chat template" in t.seen, t.seen


def no_terminal_no_conversation():
    out = subprocess.run([command, "run", chatty, "--chat"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert out.returncode == 2 and b"-p TEXT" in out.stderr, out


for test in (remembers_what_was_said, interrupts_stop_the_answer, a_model_without_template_says_so, no_terminal_no_conversation):
    test()
    print("ok", test.__name__, flush=True)
