"""Mixed load on `neuronmlp serve` for a while: answers are compared with the command's, memory and /health are watched.

Usage: soak.py COMMAND ROOT WORKDIR SECONDS [CLIENTS [REQUESTS]]. REQUESTS are spread over the time, which lasts longer where the
machine is too slow for them. Prints one JSON object; exits 1 where an answer was wrong, the server failed or its memory grew by more
than 2 % after the first quarter and the first thousand requests (on a slow machine the load lasts until there are three thousand). What
is compared are medians of the first and the last third of the time: what is resident goes up and down by 2 % with the requests that are
under way. What was seen so far goes to standard error every minute."""
import atexit
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time

command, root, work, seconds = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
clients = int(sys.argv[5]) if len(sys.argv) > 5 else 8
wanted = int(sys.argv[6]) if len(sys.argv) > 6 else 0
tiny = os.path.join(root, "models", "tiny")
common = ["--device", "cpu", "--precision", "f32"]
LENGTHS = (2, 6, 12)
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
                                                            "additionalProperties": False}}}
WARM, ENOUGH = 1000, 3000  # requests after which memory is compared, and that a run has at least
CLEAR = 0.05  # natural logarithm between the two likeliest tokens: far above what the order of sums changes

log = os.path.join(work, "log")
with open(log, "w") as file:
    server = subprocess.Popen([command, "serve", tiny, "--port", "0", "--slots", str(clients), *common], stderr=file)
atexit.register(server.kill)
port = None
until = time.time() + 60
while port is None:
    assert server.poll() is None and time.time() < until, open(log).read()
    for line in open(log):
        if '"event":"ready"' in line and line.endswith("\n"):
            port = int(json.loads(line)["url"].rsplit(":", 1)[1])
    time.sleep(0.05)


def ask(connection, path, body=None):
    connection.request("POST" if body is not None else "GET", path, json.dumps(body).encode() if body is not None else None)
    answer = connection.getresponse()
    text = answer.read().decode()
    return answer.status, json.loads(text) if answer.headers["Content-Type"].startswith("application/json") else text


def resident_bytes():
    with open("/proc/%d/status" % server.pid) as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


def command_text(prompt, new):
    out = subprocess.run([command, "run", tiny, "-p", prompt, "-n", str(new), "--ignore-eos", "--json", *common], check=True, capture_output=True)
    return json.loads(out.stdout)["text"]


def clear_prompts():
    """Prompts whose greedy answer has no near tie, with the command's answer."""
    with open(os.path.join(tiny, "calib.txt"), encoding="utf-8") as file:
        words = file.read().split()
    connection, chosen, source = http.client.HTTPConnection("127.0.0.1", port, timeout=120), [], random.Random(1)
    while len(chosen) < 24:
        at, n = source.randrange(len(words) - 300), source.choice((4, 8, 30, 120, 220))
        prompt = " ".join(words[at : at + n])
        status, reply = ask(connection, "/v1/completions", {"prompt": prompt, "max_tokens": LENGTHS[-1], "temperature": 0, "ignore_eos": True, "logprobs": 2})
        if status != 200:
            continue
        tops = [sorted(t.values(), reverse=True) for t in reply["choices"][0]["logprobs"]["top_logprobs"]]
        if all(len(t) == 2 and t[0] - t[1] > CLEAR for t in tops):
            chosen.append((prompt, {n: command_text(prompt, n) for n in LENGTHS}))
    return chosen


counts = {"requests": 0, "compared": 0, "wrong": 0, "sampled": 0, "scored": 0, "structured": 0, "embedded": 0, "cancelled": 0, "refused": 0, "failed": 0}
problems, health = [], []
lock = threading.Lock()
prompts = clear_prompts()
begin = time.time()


def count(*names, details=()):
    with lock:
        counts["requests"] += 1
        for name in names:
            counts[name] += 1
    if "failed" in names:
        print("failed:", *details, file=sys.stderr, flush=True)


def one(connection, source):
    prompt, answers = source.choice(prompts)
    new = source.choice(LENGTHS)
    want, kind = answers[new], source.random()
    body = {"prompt": prompt, "max_tokens": new, "temperature": 0, "ignore_eos": True}
    if kind < 0.55:
        status, reply = ask(connection, "/v1/completions", body)
        text = reply["choices"][0]["text"] if status == 200 else None
    elif kind < 0.8:
        status, reply = ask(connection, "/v1/completions", {**body, "stream": True})
        events = [json.loads(e[6:]) for e in reply.split("\n\n") if e.startswith("data: {")] if status == 200 else []
        text = "".join(e["choices"][0]["text"] for e in events)
    elif kind < 0.84:
        status, reply = ask(connection, "/v1/completions", {**body, "temperature": 1, "n": 3, "max_tokens": new})
        return count("sampled") if status == 200 else count("failed", details=(status, reply))
    elif kind < 0.86:
        status, reply = ask(connection, "/v1/completions", {"prompt": prompt, "max_tokens": 100, "response_format": SCHEMA})
        if status != 200 or json.loads(reply["choices"][0]["text"])["ok"] not in (True, False):
            return count("failed", details=(status, reply))
        return count("structured")
    elif kind < 0.89:
        status, reply = ask(connection, "/v1/embeddings", {"input": prompt, "encoding_format": "base64"})
        return count("embedded") if status == 200 else count("failed", details=(status, reply))
    elif kind < 0.92:
        status, reply = ask(connection, "/v1/completions", {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 1})
        return count("scored") if status == 200 else count("failed", details=(status, reply))
    elif kind < 0.96:
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True, "max_tokens": 200}).encode())
        time.sleep(source.random() * 0.05)
        connection.close()
        return count("cancelled")
    else:
        status, reply = ask(connection, "/v1/completions", source.choice(("no object", {"prompt": 3}, {**body, "temperature": -1}, {"prompt": [10**6]})))
        return count("refused") if status == 400 else count("failed", details=(status, reply))
    if status != 200:
        return count("failed", details=(status, reply))
    count("compared")
    if text != want:
        with lock:
            counts["wrong"] += 1
            problems.append([prompt[-60:], text, want])


def over():
    """Whether the load has ended; requests that have a rate wait here for their time."""
    with lock:
        n = counts["requests"]
    if not wanted:
        return time.time() - begin > seconds and n >= ENOUGH
    while n < wanted and time.time() - begin < seconds * n / wanted:
        time.sleep(0.01)
    return n >= wanted


def client(seed):
    source = random.Random(seed)
    while not over():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            for _ in range(20):
                if over():
                    break
                one(connection, source)
        except Exception as problem:  # noqa: BLE001: whatever it is, it is counted and shown
            with lock:
                counts["failed"] += 1
                problems.append(repr(problem))
            print("failed:", repr(problem), file=sys.stderr, flush=True)
        connection.close()


threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
for thread in threads:
    thread.start()
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
memory, said = [], 0
while any(thread.is_alive() for thread in threads):
    before = time.time()
    ask(connection, "/health")
    health.append(1e3 * (time.time() - before))
    memory.append((time.time() - begin, resident_bytes(), counts["requests"]))
    if memory[-1][0] > said + 60:
        said = memory[-1][0]
        print(json.dumps({**counts, "seconds": round(said), "rss": memory[-1][1]}), file=sys.stderr, flush=True)
    time.sleep(0.1)
later = [b for t, b, n in memory if t > seconds / 4 and n >= WARM]
third = max(len(later) // 3, 1)
warm, end = statistics.median(later[:third]), statistics.median(later[-third:])
health.sort()
result = {**counts, "seconds": round(time.time() - begin, 1), "rss_warm": round(warm), "rss_end": round(end), "rss_max": max(later),
          "growth": round(end / warm - 1, 4), "health_ms_p50": round(health[len(health) // 2], 2),
          "health_ms_p99": round(health[int(0.99 * len(health))], 2), "problems": problems[:5]}
server.send_signal(signal.SIGTERM)
ended = server.wait(60)
print(json.dumps(result))
sys.exit(0 if ended == 0 and not counts["wrong"] and not counts["failed"] and result["growth"] <= 0.02 else 1)
