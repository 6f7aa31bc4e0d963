"""Compares the program's chat templates with jinja2, in the environment that `transformers` gives them.

  chat_templates.py TOOL [FOLDER]       compares nmlp_render_chat on the templates of FOLDER
  chat_templates.py --write FOLDER      writes FOLDER/cases.jsonl: cases with jinja2's results

FOLDER is tests/data/chat unless given; any folder of *.jinja will do. Needs jinja2 (Debian: python3-jinja2).
"""
import datetime
import glob
import json
import os
import subprocess
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1700000000
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
CITY = {"type": "object", "properties": {"city": {"type": "string", "description": "The city"},
                                         "unit": {"type": "string", "enum": ["c", "f"]},
                                         "days": {"type": "integer", "default": 1}}, "required": ["city"]}
NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": ["number", "null"]}},
           "required": ["a", "b"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": 'Weather "now" <b>é</b>', "parameters": CITY}},
         {"type": "function", "function": {"name": "add", "description": "Adds\ntwo", "parameters": NUMBERS,
                                           "return": {"type": "number"}}}]
CALL = {"id": "abcdefghi", "type": "function",
        "function": {"name": "weather", "arguments": {"city": "Paris", "days": 2, "x": 1.5, "ok": True, "n": None}}}
SYSTEM = {"role": "system", "content": "You are a helpful bot.\n"}
USER = {"role": "user", "content": " Hi there! <|im_end|> "}
ANSWER = {"role": "assistant", "content": "Hello.\n\nHow are you?"}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "abcdefghi", "content": '{"t": 20}'}
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [SYSTEM, USER, ANSWER, {"role": "user", "content": "Tell me\nmore: 'x' \"y\" é 你好"}],
    [USER, {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nAnswer"}, {"role": "user", "content": "again"}],
    [USER, {"role": "assistant", "content": "Answer", "reasoning_content": "because"}],
    [SYSTEM, USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT, RESULT],
    [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT,
     {"role": "assistant", "content": "It is sunny."}, {"role": "user", "content": "thanks"}],
    [{"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": "part two"}]}],
]
KWARGS = [{}, {"enable_thinking": False, "thinking": True}]


class Generation(jinja2.ext.Extension):
    """{% generation %}: its body as it is."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(f)
    return env


def cases(folder):
    for file in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        with open(file, encoding="utf-8", newline="") as f:
            template = environment().from_string(f.read())
        for messages in CONVERSATIONS:
            for tools in (None, TOOLS):
                for kwargs in KWARGS:
                    prompt = not kwargs or tools is None
                    variables = json.loads(json.dumps(dict(SPECIAL, messages=messages, tools=tools, **kwargs)))
                    try:
                        expected = template.render(documents=None, add_generation_prompt=prompt, **variables)
                    except Exception:  # whatever jinja2 refuses, we must refuse
                        expected = None
                    yield {"template": os.path.basename(file), "messages": json.dumps(messages, ensure_ascii=False),
                           "tools": tools and json.dumps(tools, ensure_ascii=False), "kwargs": json.dumps(kwargs),
                           "prompt": prompt, "expected": expected}


def compare(tool, folder):
    wrong = 0
    n = 0
    for case in cases(folder):
        result = subprocess.run([tool, os.path.join(folder, case["template"]), json.dumps(SPECIAL), str(NOW),
                                 "1" if case["prompt"] else "0", case["kwargs"], case["tools"] or ""],
                                input=case["messages"].encode(), capture_output=True, env={**os.environ, "TZ": "UTC"})
        got = result.stdout.decode() if result.returncode == 0 else None
        n += 1
        if got != case["expected"]:
            wrong += 1
            if wrong <= 5:
                print(f"{case['template']}: {case['messages'][:200]}\n  {got!r}\n  {case['expected']!r}\n"
                      f"  {result.stderr.decode()[-300:]}")
    print(f"{n} conversations, {wrong} differ")
    return 1 if wrong else 0


def main():
    own = os.path.join(os.path.dirname(__file__), "..", "data", "chat")
    if sys.argv[1] == "--write":
        with open(os.path.join(sys.argv[2], "cases.jsonl"), "w", encoding="utf-8") as f:
            for case in cases(sys.argv[2]):
                f.write(json.dumps(case, ensure_ascii=False) + "\n")
        return 0
    return compare(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else own)


if __name__ == "__main__":
    sys.exit(main())
