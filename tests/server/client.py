"""What clients of `neuronmlp serve` rely on, asked with the standard library only. Usage: client.py COMMAND ROOT WORKDIR"""
import atexit
import base64
import hashlib
import http.client
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

command, root, work = sys.argv[1:4]
tiny = os.path.join(root, "models", "tiny")
common = ["--port", "0", "--device", "cpu", "--precision", "f32", "--threads", "1"]


class Server:
    def __init__(self, model, *options):
        self.log = open(os.path.join(work, "log"), "w+")
        self.process = subprocess.Popen([command, "serve", model, *common, *options], stderr=self.log)
        atexit.register(self.process.kill)  # a test that fails leaves no server behind
        until = time.time() + 60
        self.port = None
        while self.port is None:
            assert self.process.poll() is None and time.time() < until, self.lines()
            for line in self.lines():
                if line.get("event") == "ready":
                    self.port = int(line["url"].rsplit(":", 1)[1])
            time.sleep(0.02)

    def lines(self):
        with open(self.log.name) as file:
            return [json.loads(line) for line in file if line.startswith("{") and line.endswith("\n")]  # besides notes

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def ask(self, path, body=None, headers=None, method=None):
        """Status, headers and body; JSON is parsed."""
        connection = self.connect()
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method or ("POST" if body is not None else "GET"), path, data, headers or {})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        is_json = answer.getheader("Content-Type", "").startswith("application/json")
        return answer.status, answer.headers, json.loads(text) if is_json and text else text.decode()

    def ok(self, path, body=None, headers=None):
        status, _, answer = self.ask(path, body, headers)
        assert status == 200, (status, answer)
        return answer

    def stream(self, path, body):
        """The events of a stream, without [DONE], which must be there."""
        connection = self.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}).encode())
        answer = connection.getresponse()
        assert answer.status == 200 and answer.getheader("Content-Type") == "text/event-stream", answer.read()
        events = [event for event in answer.read().decode().split("\n\n") if not event.startswith(":")]  # signs of life
        assert events[-1] == "" and events[-2] == "data: [DONE]", events[-3:]
        assert all(event.startswith("data: ") for event in events[:-1])
        return [json.loads(event[6:]) for event in events[:-2]]

    def metric(self, name):
        for line in self.ok("/metrics").splitlines():
            if line.startswith("neuronmlp_" + name + " "):
                return float(line.split()[1])
        raise AssertionError(name)

    def wait_for(self, name, value, seconds=20):
        until = time.time() + seconds
        while self.metric(name) != value:
            assert time.time() < until, f"{name} is {self.metric(name)}, not {value}"
            time.sleep(0.02)

    def stop(self, wanted=0):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == wanted, self.process.returncode
        self.log.close()


def run(*arguments):
    return json.loads(subprocess.run([command, *arguments, "--json"], check=True, capture_output=True).stdout)


def cli_text(model, *options):
    return run("run", model, *common[2:], *options)


# Long enough to be there while something else is looked at.
LONG = {"prompt": "The old house", "max_tokens": 400, "n": 100, "ignore_eos": True, "temperature": 0.7}


def answers_are_those_of_the_command(server):
    want = cli_text(tiny, "-p", "The old house", "-n", "24")
    body = {"model": "any", "prompt": "The old house", "max_tokens": 24, "temperature": 0}
    answer = server.ok("/v1/completions", body)
    assert answer["choices"][0]["text"] == want["text"], answer
    assert answer["object"] == "text_completion" and answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == want["prompt_tokens"] and answer["usage"]["completion_tokens"] == 24
    events = server.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == want["text"]
    assert [e["choices"][0]["finish_reason"] for e in events[:-1]] == [None] * (len(events) - 2) + ["length"]
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 24
    # A long text again: most of it is not computed again.
    long = {"prompt": open(os.path.join(tiny, "calib.txt")).read()[:1200], "max_tokens": 1, "temperature": 0}
    usages = [server.ok("/v1/completions", long)["usage"] for _ in range(2)]
    cached = [u["prompt_tokens_details"]["cached_tokens"] for u in usages]
    assert cached[0] == 0 and 0.5 * usages[1]["prompt_tokens"] < cached[1] < usages[1]["prompt_tokens"], usages
    # Sampling: the seed decides.
    sampled = {**body, "temperature": 0.9, "seed": 7}
    texts = [server.ok("/v1/completions", sampled)["choices"][0]["text"] for _ in range(2)]
    assert texts[0] == texts[1] == cli_text(tiny, "-p", "The old house", "-n", "24", "--temp", "0.9", "--seed", "7")["text"]
    # Stop strings may begin and end inside tokens.
    stopped = server.ok("/v1/completions", {**body, "stop": ["nowhere", "ld ho"]})["choices"][0]
    assert stopped["text"] == want["text"][: want["text"].index("ld ho")] and stopped["finish_reason"] == "stop"
    events = server.stream("/v1/completions", {**body, "stop": "ld ho"})
    assert "".join(e["choices"][0]["text"] for e in events) == stopped["text"]


def prompts_come_as_strings_and_ids(server):
    ids = run("tokenize", tiny, "-p", "The old house")["ids"]
    assert server.ok("/tokenize", {"content": "The old house"})["tokens"] == ids
    assert server.ok("/tokenize", {"prompt": "The old house"})["count"] == len(ids)
    assert server.ok("/detokenize", {"tokens": ids})["content"] == "The old house"
    body = {"max_tokens": 6, "temperature": 0}
    one = server.ok("/v1/completions", {**body, "prompt": "The old house"})["choices"][0]["text"]
    sea = server.ok("/v1/completions", {**body, "prompt": "The sea"})["choices"][0]["text"]
    for prompt, want in ((ids, [one]), ([ids], [one]), (["The old house", "The sea"], [one, sea])):
        choices = server.ok("/v1/completions", {**body, "prompt": prompt})["choices"]
        assert [c["text"] for c in choices] == want and [c["index"] for c in choices] == list(range(len(want)))
    several = server.ok("/v1/completions", {**body, "prompt": "The sea", "n": 3, "temperature": 1.2, "seed": 1})
    assert len({c["text"] for c in several["choices"]}) > 1 and several["usage"]["prompt_tokens"] == 2


def biases_and_penalties(server):
    """A bias of 100 decides; frequency makes greedy answers repeat less; a banned token never comes."""
    body = {"prompt": "The old house", "max_tokens": 40, "temperature": 0, "ignore_eos": True, "logprobs": 0}
    ids = run("tokenize", tiny, "-p", " sea", "--no-bos")["ids"]
    forced = server.ok("/v1/completions", {**body, "max_tokens": 3, "logit_bias": {str(ids[0]): 100}})
    assert forced["choices"][0]["text"] == run("tokenize", tiny, "--decode", ",".join([str(ids[0])] * 3))["text"], forced
    plain = server.ok("/v1/completions", body)["choices"][0]
    varied = server.ok("/v1/completions", {**body, "frequency_penalty": 2, "presence_penalty": 2})["choices"][0]
    assert len(set(varied["logprobs"]["tokens"])) > len(set(plain["logprobs"]["tokens"])), (plain["text"], varied["text"])
    first = server.ok("/tokenize", {"content": plain["logprobs"]["tokens"][0], "add_special_tokens": False})["tokens"]
    if len(first) == 1:
        banned = server.ok("/v1/completions", {**body, "logit_bias": {str(first[0]): -100}})["choices"][0]
        assert plain["logprobs"]["tokens"][0] not in banned["logprobs"]["tokens"], banned


def embeddings_and_descriptions(server):
    """Vectors of length 1, texts that are alike near each other; base64 holds the same numbers."""
    texts = ["The old house stood at the end of the road", "The old house stood at the end of a road", "Astronomy"]
    answer = server.ok("/v1/embeddings", {"model": "any", "input": texts})
    vectors = [d["embedding"] for d in answer["data"]]
    assert answer["object"] == "list" and [d["index"] for d in answer["data"]] == [0, 1, 2] and answer["data"][0]["object"] == "embedding"
    assert all(abs(sum(x * x for x in v) - 1) < 1e-5 for v in vectors)
    near, far = (sum(a * b for a, b in zip(vectors[0], v)) for v in vectors[1:])
    assert near > far, (near, far)
    ids = run("tokenize", tiny, "-p", texts[0])["ids"]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > len(ids)
    coded = server.ok("/v1/embeddings", {"input": [ids], "encoding_format": "base64"})["data"][0]["embedding"]
    numbers = struct.unpack(f"<{len(vectors[0])}f", base64.b64decode(coded))
    assert max(abs(a - b) for a, b in zip(numbers, vectors[0])) < 1e-5
    for body, field in (({}, "input"), ({"input": ""}, "prompt"), ({"input": "x", "encoding_format": "int8"}, "encoding_format"), ({"input": "x", "dimensions": 3}, "dimensions")):
        status, _, answer = server.ask("/v1/embeddings", body)
        assert status == 400 and answer["error"]["param"] == field, (body, answer)
    info = server.ok("/tokenizer_info")
    assert "bos_token" in info and info["eos_token"] == "<|end_of_text|>" and info["chat_template"] is None, info
    props = server.ok("/props")
    assert props["total_slots"] == 8 and props["default_generation_settings"]["n_ctx"] == server.ok("/v1/models")["data"][0]["max_model_len"]
    slots = server.ok("/slots")
    assert [s["id"] for s in slots] == list(range(8)) and not any(s["is_processing"] for s in slots)


def log_softmax(row, token):
    top = max(row)
    return row[token] - top - math.log(sum(math.exp(x - top) for x in row))


def the_page(server):
    status, headers, page = server.ask("/")
    policy = headers["Content-Security-Policy"]
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8" and "unsafe" not in policy, policy
    for name in ("script", "style"):
        text = page.split("<%s>" % name, 1)[1].split("</%s>" % name, 1)[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert "%s-src 'sha256-%s'" % (name, digest) in policy, name
        assert page.count("<%s>" % name) == 1
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "<link rel=\"stylesheet" not in page


def scoring_as_evaluation_harnesses_ask_for_it(server):
    """echo with logprobs: every token of the prompt, compared with the logits of the command."""
    ids = run("tokenize", tiny, "-p", "The old house stood at the end of the road")["ids"]
    places = ",".join(str(i) for i in range(len(ids)))
    logits = run("logits", tiny, "--ids", ",".join(map(str, ids)), "--positions", places)["logits"]
    body = {"prompt": [ids], "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0}
    choice = server.ok("/v1/completions", body)["choices"][0]
    scores, tops = choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]
    assert len(scores) == len(ids) + 1 and scores[0] is None and tops[0] is None
    for i in range(1, len(ids)):
        assert abs(scores[i] - log_softmax(logits[i - 1], ids[i])) < 1e-4, (i, scores[i])
        greedy = max(range(len(logits[i - 1])), key=lambda v: logits[i - 1][v]) == ids[i]
        assert (scores[i] == max(tops[i].values())) == greedy  # exactly, as lm-evaluation-harness compares
    assert scores[-1] == max(tops[-1].values()) and choice["logprobs"]["token_ids"][:-1] == ids
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    offsets = choice["logprobs"]["text_offset"]
    for token, offset in zip(choice["logprobs"]["tokens"], offsets):
        assert choice["text"][offset : offset + len(token)] == token
    only = server.ok("/v1/completions", {**body, "max_tokens": 0})["choices"][0]
    assert only["logprobs"]["token_logprobs"] == scores[:-1] and choice["text"].startswith(only["text"])
    plain = server.ok("/v1/completions", {"prompt": "The sea", "echo": True, "max_tokens": 2, "temperature": 0})
    assert plain["choices"][0]["text"].startswith("The sea") and plain["choices"][0]["logprobs"] is None
    events = server.stream("/v1/completions", body)
    assert "".join(e["choices"][0]["text"] for e in events) == choice["text"]


def conversations(model):
    server = Server(model, "--name", "chatty")
    want = cli_text(model, "--chat", "--system", "Be short.", "-p", "Where is the house?", "-n", "12")
    body = {"messages": [{"role": "developer", "content": "Be short."},
                         {"role": "user", "content": [{"type": "text", "text": "Where is "}, {"type": "text", "text": "the house?"}]}],
            "max_completion_tokens": 12, "temperature": 0}
    answer = server.ok("/v1/chat/completions", body)
    message = answer["choices"][0]["message"]
    assert answer["object"] == "chat.completion" and answer["model"] == "chatty"
    assert message == {"role": "assistant", "content": want["text"]}, (message, want)
    assert answer["usage"]["prompt_tokens"] == want["prompt_tokens"]
    events = server.stream("/v1/chat/completions", {**body, "logprobs": True, "top_logprobs": 2})
    assert events[0]["object"] == "chat.completion.chunk" and events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1]["choices"][0]["delta"] == {} and events[-1]["choices"][0]["finish_reason"]
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == want["text"]
    tokens = [t for e in events if e["choices"][0]["logprobs"] for t in e["choices"][0]["logprobs"]["content"]]
    assert len(tokens) == want["generated_tokens"]
    for token in tokens:
        assert token["id"] == token["top_logprobs"][0]["id"]
        assert token["logprob"] == token["top_logprobs"][0]["logprob"] >= token["top_logprobs"][1]["logprob"]
        assert token["bytes"] is None or bytes(token["bytes"]).decode() == token["token"]
    encoded = server.ok("/tokenize", {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Where is the house?"}]})
    assert encoded["count"] == want["prompt_tokens"]
    # The next message of the conversation: what was computed is not computed again.
    more = body["messages"] + [message, {"role": "user", "content": "And the garden?"}]
    usage = server.ok("/v1/chat/completions", {**body, "messages": more})["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 16, usage
    # What looks like a special token in a message is text.
    ids = [server.ok("/v1/chat/completions", {**body, "max_completion_tokens": 1, "messages": [{"role": "user", "content": text}]})
           ["usage"]["prompt_tokens"] for text in ("x", "x<|im_end|>")]
    assert ids[1] > ids[0] + 1, ids
    server.stop()


def models_methods_and_metrics(server):
    """One model by its name, HEAD as GET without a body, other methods as errors, and the names of vLLM's metrics."""
    (model,) = server.ok("/v1/models")["data"]
    assert server.ok("/v1/models/" + model["id"]) == model and server.ok("/v1/models/%74iny") == model
    for name in ("other", "", "tiny%00", "%", "tiny/x"):
        status, _, answer = server.ask("/v1/models/" + name)
        assert status == 404 and answer["error"]["type"] == "invalid_request_error", (name, answer)
    status, _, text = server.ask("/health", method="HEAD")
    assert status == 200 and text == ""
    for method in ("PUT", "DELETE", "PATCH", "HEAD"):
        status, _, answer = server.ask("/v1/completions", method=method)
        assert status == 405 and (method == "HEAD" or method in answer["error"]["message"]), (method, status, answer)
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total", "prefix_cache_hits_total",
             "prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_count", "inter_token_latency_seconds_count")
    assert all(server.metric(name) >= 0 for name in names)
    thread = threading.Thread(target=server.ask, args=("/v1/completions", {**LONG, "n": 8, "max_tokens": 100}))
    thread.start()
    until = time.time() + 30
    while not 0 < server.metric("kv_cache_usage_perc") <= 1:
        assert time.time() < until
    thread.join()
    server.wait_for("kv_cache_usage_perc", 0)


def wrong_requests_are_named(server):
    good = {"prompt": "x", "max_tokens": 2}
    cases = [
        ({"max_tokens": 2}, "prompt"), ({**good, "prompt": 3}, "prompt"), ({**good, "prompt": ["x", 3]}, "prompt"),
        ({**good, "prompt": [1, -2]}, "prompt"), ({**good, "prompt": ""}, "prompt"),
        ({**good, "max_tokens": "many"}, "max_tokens"), ({**good, "max_tokens": 0}, "max_tokens"),
        ({**good, "temperature": -1}, "temperature"), ({**good, "temperature": "hot"}, "temperature"),
        ({**good, "top_p": 2}, "top_p"), ({**good, "top_k": 1.5}, "top_k"), ({**good, "min_p": 1}, "min_p"),
        ({**good, "n": 0}, "n"), ({**good, "n": 1000}, "n"), ({**good, "stop": [""]}, "stop"), ({**good, "stop": 3}, "stop"),
        ({**good, "stop": ["a"] * 17}, "stop"), ({**good, "logprobs": 21}, "logprobs"), ({**good, "stream": "yes"}, "stream"),
        ({**good, "seed": "x"}, "seed"), ({**good, "tools": [{}]}, "tools"), ({**good, "logit_bias": {"1": 500}}, "logit_bias"),
        ({**good, "logit_bias": {"x": 5}}, "logit_bias"), ({**good, "logit_bias": {"8192": 5}}, "logit_bias"), ({**good, "logit_bias": [1]}, "logit_bias"),
        ({**good, "response_format": {"type": "json"}}, "response_format"), ({**good, "presence_penalty": 3}, "presence_penalty"),
    ]
    for body, field in cases:
        status, _, answer = server.ask("/v1/completions", body)
        assert status == 400 and answer["error"]["param"] == field, (body, status, answer)
        assert "--" not in answer["error"]["message"]
    for body, field in (({"messages": []}, "messages"), ({"messages": [{"role": "ghost", "content": "x"}]}, "messages"),
                        ({"messages": [{"role": "user"}]}, "messages"),
                        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
                        ({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2}, "top_logprobs")):
        status, _, answer = server.ask("/v1/chat/completions", body)
        assert status == 400 and answer["error"]["param"] == field, (body, status, answer)
    for body in (b"", b"{", b"[1]", b"null", b"\xff\xfe", b'{"prompt":"x"}garbage', b"[" * 100000):
        status, _, answer = server.ask("/v1/completions", body)
        assert status == 400 and answer["error"]["type"] == "invalid_request_error", (body[:20], status, answer)
    status, _, answer = server.ask("/v1/completions", {"prompt": [5] * 600, "max_tokens": 2})
    assert status == 400 and "600" in answer["error"]["message"], answer
    status, _, answer = server.ask("/v1/completions", {"prompt": [8192], "max_tokens": 2})
    assert status == 400 and "8192" in answer["error"]["message"], answer
    # Unknown fields are passed over, and said in the log.
    server.ok("/v1/completions", {**good, "frobnicate": 1})
    assert any(line.get("ignored") == "frobnicate" and "ignored" in line["warning"] for line in server.lines())
    assert server.ask("/nothing")[0] == 404 and server.ask("/v1/completions")[0] == 405
    assert server.ask("/health", b"x")[0] == 405


def raw(server, data, wait=5):
    """Sends bytes and reads until the server closes or nothing comes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as s:
        s.sendall(data)
        got = b""
        try:
            while piece := s.recv(65536):
                got += piece
        except (TimeoutError, ConnectionResetError):
            pass
        return got


def hostile_clients(server):
    smuggled = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    both = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled
    got = raw(server, both)
    assert got.startswith(b"HTTP/1.1 400") and got.count(b"HTTP/1.1") == 1, got
    twice = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 0\r\n\r\nhello" + smuggled
    got = raw(server, twice)
    assert got.startswith(b"HTTP/1.1 400") and got.count(b"HTTP/1.1") == 1, got
    # Lengths that a proxy may read otherwise: refused, and nothing behind them is answered.
    for odd in (b"Transfer-Encoding: xchunked", b"Transfer-Encoding: identity, chunked", b"Content-Length: +5", b"Content-Length: -5",
                b"Content-Length: 0x5", b"Content-Length : 5", b"content-length: 5\r\ntRANSFER-encoding: chunked"):
        got = raw(server, b"POST /tokenize HTTP/1.1\r\nHost: x\r\n" + odd + b"\r\n\r\n0\r\n\r\n" + smuggled)
        assert got.startswith(b"HTTP/1.1 400") and got.count(b"HTTP/1.1") == 1, (odd, got)
    got = raw(server, b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 50000 + b"\r\n\r\n")
    assert b" 200 " not in got, got[:100]
    got = raw(server, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 90000000\r\n\r\n")
    assert b" 413 " in got, got[:100]
    # Two requests sent at once are answered one after the other; the second waits while the first is worked on.
    one = json.dumps({"prompt": "The sea", "max_tokens": 4, "temperature": 0}).encode()
    post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(one) + one
    got = raw(server, post + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert got.count(b"HTTP/1.1 200") == 2 and got.index(b"text_completion") < got.index(b'"status":"ok"'), got
    assert server.ok("/health") == {"status": "ok"}


def slow_and_many_clients():
    server = Server(tiny, "--request-timeout", "1", "--per-address", "3")
    began = time.time()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        s.sendall(b"GET /health HTT")
        while time.time() - began < 10:  # a byte now and then does not help
            try:
                s.sendall(b"P")
                s.settimeout(0.3)
                if s.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                break
    assert 0.5 < time.time() - began < 8, time.time() - began
    for _ in range(20):  # connections that are over do not count
        assert server.ok("/health") == {"status": "ok"}
    held = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(3)]
    extra = socket.create_connection(("127.0.0.1", server.port), timeout=5)
    assert extra.recv(1) == b""  # closed without a word
    for s in held + [extra]:
        s.close()
    time.sleep(2.5)
    assert server.ok("/health") == {"status": "ok"}
    server.stop()


def begin_long(server):
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps({**LONG, "stream": True}).encode())
    return connection


def queue_cancel_and_health():
    server = Server(tiny, "--queue", "1", "--slots", "1")
    first = begin_long(server)
    server.wait_for("num_requests_running", 1)
    second = begin_long(server)
    server.wait_for("num_requests_waiting", 1)
    status, headers, answer = server.ask("/v1/completions", {"prompt": "x"})
    assert status == 429 and int(headers["Retry-After"]) >= 1 and answer["error"]["type"] == "rate_limit_error", answer
    for _ in range(20):
        began = time.time()
        server.ok("/health")
        assert time.time() - began < 2
    second.close()  # it never ran
    first.close()   # it runs; the next request's turn comes long before it would have ended
    server.wait_for("num_requests_running", 0, 30)
    server.wait_for("num_requests_waiting", 0, 30)
    statuses = [line["status"] for line in server.lines() if line.get("path") == "/v1/completions"]
    assert statuses.count(499) == 2, statuses
    server.ok("/v1/completions", {"prompt": "x", "max_tokens": 2})
    server.stop()


def requests_run_together():
    """Eight streams at once: each gets what it gets alone, and all are under way at the same time."""
    server = Server(tiny, "--slots", "8")
    prompts = ["The old house", "The sea", "Astronomy is", "In the morning", "A small dog", "The king said", "Once more", "He went"]
    body = {"max_tokens": 120, "temperature": 0, "ignore_eos": True}
    alone = [server.ok("/v1/completions", {**body, "prompt": p})["choices"][0]["text"] for p in prompts]
    together = [None] * len(prompts)

    def ask(i):
        together[i] = server.ok("/v1/completions", {**body, "prompt": prompts[i]})["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    most = 0
    while any(thread.is_alive() for thread in threads):
        most = max(most, server.metric("num_requests_running"))
    assert most > 1, most
    # f32 sums of rows side by side may round otherwise; texts that part do so at near ties, not at the beginning
    same = sum(a == b for a, b in zip(alone, together))
    assert all(b and a[:20] == b[:20] for a, b in zip(alone, together)) and same >= len(prompts) - 2, (alone, together)
    # A request with many choices does not keep another waiting.
    held = begin_long(server)
    server.wait_for("num_requests_running", 1)
    server.ok("/v1/completions", {"prompt": "The sea", "max_tokens": 3})
    assert server.metric("num_requests_running") == 1
    held.close()
    server.wait_for("num_requests_running", 0)
    server.stop()


def prompts_are_logged_when_asked_for():
    for options in ((), ("--log-prompts",)):
        server = Server(tiny, *options)
        server.ok("/v1/completions", {"prompt": "a secret", "max_tokens": 1})
        server.ok("/v1/embeddings", {"input": ["a secret"]})
        server.stop()
        with open(server.log.name) as file:
            lines = [json.loads(line) for line in file if '"path":"/v1/' in line]
        assert [line.get("prompt", line.get("input")) for line in lines] == (["a secret", ["a secret"]] if options else [None, None]), lines
        assert bool(options) == any("secret" in json.dumps(line) for line in lines)


def loading_and_times():
    """While the model is loaded all but /health is refused, and /health says why; streams that wait show that they live;
    answers have an end."""
    slow = os.path.join(work, "slow")
    os.mkdir(slow)
    for name in ("config.json", "model.safetensors"):
        os.symlink(os.path.join(tiny, name), os.path.join(slow, name))
    with open(os.path.join(tiny, "tokenizer.json"), "rb") as file, open(os.path.join(slow, "tokenizer.json"), "wb") as padded:
        padded.write(file.read() + b" " * (150 << 20))  # takes a while to read
    log = open(os.path.join(work, "slow.log"), "w+")
    process = subprocess.Popen([command, "serve", slow, *common], stderr=log)
    atexit.register(process.kill)
    server = Server.__new__(Server)
    server.process, server.log = process, log
    until = time.time() + 60
    while not any(line.get("event") == "listening" for line in server.lines()):
        assert process.poll() is None and time.time() < until
        time.sleep(0.005)
    server.port = int(server.lines()[0]["url"].rsplit(":", 1)[1])
    status, headers, answer = server.ask("/health")
    assert status == 503 and answer == {"status": "loading"} and headers["Retry-After"], (status, answer)
    status, _, answer = server.ask("/v1/completions", {"prompt": "x"})
    assert status == 503 and "loaded" in answer["error"]["message"], answer
    while server.ask("/health")[0] == 503:
        assert process.poll() is None and time.time() < until
        time.sleep(0.02)
    server.ok("/v1/completions", {"prompt": "x", "max_tokens": 2})
    server.stop()
    # One slot is held; a stream that waits gets comments, and one that waits too long an error.
    server = Server(tiny, "--slots", "1", "--ping", "0.5", "--answer-timeout", "300")
    held = begin_long(server)
    server.wait_for("num_requests_running", 1)
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "The sea", "stream": True, "timeout": 2.5}).encode())
    answer = connection.getresponse()
    lines = answer.read().decode().split("\n\n")
    assert lines[0] == ": waiting" and lines[-1] == "" and lines[-2].startswith("data: "), lines
    assert json.loads(lines[-2][6:])["error"]["code"] == 504, lines
    began = time.time()
    status, _, answer = server.ask("/v1/completions", {"prompt": "The sea", "timeout": 1})
    assert status == 504 and time.time() - began < 20, (status, answer)
    server.wait_for("num_requests_waiting", 0)  # they left the queue
    held.close()
    server.wait_for("num_requests_running", 0)
    assert [line["status"] for line in server.lines() if line.get("path") == "/v1/completions"].count(504) == 2
    server.stop()


def memory_of_keys_and_values():
    """Requests that would fit alone but not together: those for which none is left are told to come again."""
    failed = subprocess.run([command, "serve", tiny, *common, "--ctx", "512", "--kv-bytes", "1"], capture_output=True, text=True)
    needed = int(failed.stderr.split("needs ")[1].split()[0].rstrip(".\n")) + 1
    server = Server(tiny, "--slots", "4", "--ctx", "512", "--kv-bytes", str(needed))
    body = {"prompt": "The old house", "max_tokens": 400, "temperature": 0, "ignore_eos": True}
    answers = [None] * 4

    def ask(i):
        answers[i] = server.ask("/v1/completions", {**body, "prompt": f"{i} The old house"})

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = sorted(status for status, _, _ in answers)
    assert statuses[0] == 200 and statuses[-1] == 503 and set(statuses) == {200, 503}, answers
    for status, headers, answer in answers:
        if status == 503:
            assert "keys and values" in answer["error"]["message"] and headers["Retry-After"] and answer["error"]["type"] == "server_error"
    server.stop()


PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age", "tags", "kind"], "properties": {
    "name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
    "tags": {"type": "array", "items": {"enum": ["old", "new"]}, "maxItems": 2}, "kind": {"anyOf": [{"const": "a"}, {"type": "null"}]}}}


def is_person(value):
    return (list(value) == ["name", "age", "tags", "kind"] and isinstance(value["name"], str) and len(value["name"]) <= 8
            and 0 <= value["age"] <= 130 and set(value["tags"]) <= {"old", "new"} and value["kind"] in ("a", None))


def structured_output(server):
    """Whatever the model would say: the answer is what was asked for, as every client can parse it."""
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    body = {"prompt": "The old house", "max_tokens": 200, "temperature": 1.3, "response_format": form}
    for seed in range(4):
        choices = server.ok("/v1/completions", {**body, "seed": seed, "n": 2})["choices"]
        for choice in choices:
            assert choice["finish_reason"] == "stop" and is_person(json.loads(choice["text"])), choice
    greedy = server.ok("/v1/completions", {**body, "temperature": 0, "ignore_eos": True})["choices"][0]
    assert greedy["finish_reason"] == "stop" and is_person(json.loads(greedy["text"])), greedy
    events = server.stream("/v1/completions", {**body, "temperature": 0})
    assert "".join(e["choices"][0]["text"] for e in events) == greedy["text"]
    for seed in range(6):
        choice = server.ok("/v1/completions", {**body, "seed": seed, "response_format": {"type": "json_object"}})["choices"][0]
        assert choice["text"].startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["text"]), dict), choice
    words = {"prompt": "Is it old?", "grammar": 'root ::= answer ("." | "!")\nanswer ::= "yes" | "no" | "per" "haps"', "max_tokens": 20}
    texts = {server.ok("/v1/completions", {**words, "seed": seed, "temperature": 3})["choices"][0]["text"] for seed in range(12)}
    assert len(texts) > 1 and texts <= {a + b for a in ("yes", "no", "perhaps") for b in ".!"}, texts
    assert server.metric("grammar_tokens_total") > server.metric("grammar_masks_total") > 0
    wrong = [({"response_format": {"type": "xml"}}, "response_format", "xml"), ({"response_format": {"type": "json_schema"}}, "response_format", "schema"),
             ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "array", "uniqueItems": True}}}}, "response_format", "uniqueItems"),
             ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}}, "response_format", "never ends"),
             ({"grammar": "root ::= nothing"}, "grammar", "nothing"), ({"grammar": 3}, "grammar", "string"),
             ({"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}}, "grammar", "response_format"),
             ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "messages")]
    for extra, field, part in wrong:
        status, _, answer = server.ask("/v1/completions", {"prompt": "x", **extra})
        assert status == 400 and answer["error"]["param"] == field and part in answer["error"]["message"], (extra, answer)


TEMPLATE = """{%- if tools %}<|im_start|>system\nTools: {{ tools | tojson }} Answer with <tool_call> and </tool_call>.<|im_end|>\n{% endif -%}
{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments.city }}</tool_call>{% endfor %}<|im_end|>\n{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"""
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"]}}}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}


def tools_and_templates(model):
    folder = os.path.join(work, "tools")
    os.mkdir(folder)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        os.symlink(os.path.join(model, name), os.path.join(folder, name))
    with open(os.path.join(folder, "chat_template.jinja"), "w") as file:
        file.write(TEMPLATE)
    server = Server(folder)
    path = "/v1/chat/completions"
    base = {"messages": [{"role": "user", "content": "How is it?"}], "max_tokens": 150, "temperature": 1.2, "seed": 1}
    # /tokenize takes a conversation as a chat does: the model's own template, tools and variables.
    for extra in ({}, {"tools": [WEATHER]}, {"chat_template_kwargs": {"enable_thinking": False}}):
        counted = server.ok("/tokenize", {"messages": base["messages"], **extra})["count"]
        assert counted == server.ok(path, {**base, "max_tokens": 1, **extra})["usage"]["prompt_tokens"], extra
    # chat_template_kwargs reach the template.
    tokens = [server.ok(path, {**base, "max_tokens": 1, **extra})["usage"]["prompt_tokens"]
              for extra in ({}, {"chat_template_kwargs": {"enable_thinking": True}}, {"chat_template_kwargs": {"enable_thinking": False}})]
    assert tokens[0] == tokens[1] < tokens[2], tokens
    status, _, answer = server.ask(path, {**base, "chat_template_kwargs": 3})
    assert status == 400 and answer["error"]["param"] == "chat_template_kwargs"
    # Calls that must come.
    ids = set()
    for seed, choice in enumerate(["required", "required", {"type": "function", "function": {"name": "get_time"}}]):
        body = {**base, "seed": seed, "tools": [WEATHER, TIME], "tool_choice": choice, "parallel_tool_calls": False}
        answer = server.ok(path, body)["choices"][0]
        assert answer["finish_reason"] == "tool_calls" and answer["message"]["content"] is None, answer
        (call,) = answer["message"]["tool_calls"]
        assert call["type"] == "function" and len(call["id"]) == 9 and call["id"].isalnum() and set(call) == {"id", "type", "function"}
        ids.add(call["id"])
        arguments = json.loads(call["function"]["arguments"])
        if isinstance(choice, dict) or call["function"]["name"] == "get_time":
            assert call["function"]["name"] == "get_time" and arguments == {}
        else:
            assert set(arguments) <= {"city", "days"} and len(arguments["city"]) <= 6, arguments
        # The same, streamed, put together as clients do it.
        events = server.stream(path, body)
        deltas = [e["choices"][0]["delta"] for e in events]
        assert deltas[0]["role"] == "assistant" and events[-1]["choices"][0]["finish_reason"] == "tool_calls" and deltas[-1] == {}
        parts = [d["tool_calls"][0] for d in deltas if "tool_calls" in d]
        assert parts[0]["id"] and parts[0]["type"] == "function" and parts[0]["function"]["name"] == call["function"]["name"]
        assert parts[0]["function"]["arguments"] == "" and all(p["index"] == 0 and "id" not in p for p in parts[1:])
        assert "".join(p["function"]["arguments"] for p in parts) == call["function"]["arguments"]
        assert all(not d.get("content") for d in deltas)
    assert len(ids) == 3
    # Calls that may come; none where none is wanted.
    for seed in range(5):
        answer = server.ok(path, {**base, "seed": seed, "tools": [WEATHER], "max_tokens": 40})["choices"][0]
        assert "<tool_call>" not in (answer["message"]["content"] or "")
        assert ("tool_calls" in answer["message"]) == (answer["message"].get("tool_calls") is not None)
    answer = server.ok(path, {**base, "tools": [WEATHER], "tool_choice": "none", "max_tokens": 10})["choices"][0]
    assert "tool_calls" not in answer["message"] and answer["finish_reason"] in ("stop", "length")
    # What a call gave goes back to the model: arguments come as text, templates see what they say.
    turns = base["messages"] + [{"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Bonn\"}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]
    assert server.ok(path, {**base, "messages": turns, "tools": [WEATHER], "max_tokens": 4})["usage"]["prompt_tokens"] > tokens[0]
    for extra, field in (({"tools": 3}, "tools"), ({"tools": [{"type": "function"}]}, "tools"), ({"tools": [WEATHER], "tool_choice": "maybe"}, "tool_choice"),
                         ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
                         ({"tools": [WEATHER], "response_format": {"type": "json_object"}}, "tools"),
                         ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "patternProperties": {}}}}]}, "tools")):
        status, _, answer = server.ask(path, {**base, **extra})
        assert status == 400 and answer["error"]["param"] == field, (extra, status, answer)
    server.stop()


BEGIN, END, CALL, CALL_END, SEP = (f"<｜tool▁{word}｜>" for word in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep"))
MARKS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", BEGIN, END, CALL, CALL_END, SEP)
NINE = "{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
# How a call is written, by the template that says so; the last two have no place for the list of tools.
CALL_FORMS = {
    "list": "[TOOL_CALLS][{% for c in m.tool_calls %}" + NINE + "{{ (c.function | tojson)[:-1] }}, \"id\": \"{{ c.id }}\"}{% endfor %}]",
    "args": "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}",
    "args_id": "{% for c in m.tool_calls %}" + NINE + "[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}",
    "fence": BEGIN + "{% for c in m.tool_calls %}" + CALL + "function" + SEP + "{{ c.function.name + '\\n```json\\n' + (c.function.arguments | tojson) + '\\n```' }}" + CALL_END + "{% endfor %}" + END,
    "plain": BEGIN + "{% for c in m.tool_calls %}" + CALL + "{{ c.function.name }}" + SEP + "{{ c.function.arguments | tojson }}" + CALL_END + "{% endfor %}" + END,
}


def marked_model(model, folder, form):
    """The model with a template of that form, whose marks are special tokens in place of the last words."""
    os.mkdir(folder)
    for name in ("config.json", "model.safetensors"):
        os.symlink(os.path.join(model, name), os.path.join(folder, name))
    with open(os.path.join(model, "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    words, n = tokenizer["model"]["vocab"], len(tokenizer["model"]["vocab"])
    for word in sorted(words, key=words.get)[n - len(MARKS):]:
        del words[word]
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][: -len(MARKS)]
    ids = {mark: n - len(MARKS) + i for i, mark in enumerate(MARKS)}
    tokenizer["added_tokens"] += [{**tokenizer["added_tokens"][0], "id": i, "content": mark} for mark, i in ids.items()]
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)
    lists = "" if form in ("fence", "plain") else "{% if tools %}{{ tools | tojson }}{% endif %}"
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write(lists + "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content or '' }}{% if m.tool_calls %}" + CALL_FORMS[form] +
                   "{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}")
    return ids


def tools_of_other_templates(model):
    """Calls in the forms of Mistral and DeepSeek, whose marks are special tokens; what was called comes back."""
    path = "/v1/chat/completions"
    question = {"role": "user", "content": "How is it?"}
    for form in CALL_FORMS:
        folder = os.path.join(work, "tools-" + form)
        ids = marked_model(model, folder, form)
        server = Server(folder)
        base = {"messages": [question], "max_tokens": 350, "temperature": 1.2, "seed": 5, "tools": [WEATHER, TIME], "parallel_tool_calls": False}
        calls = []
        for extra in ({"tool_choice": "required"}, {"logit_bias": {str(ids[BEGIN if form in ("fence", "plain") else "[TOOL_CALLS]"]): 100}}):
            answer = server.ok(path, {**base, **extra})["choices"][0]
            assert answer["finish_reason"] == "tool_calls" and answer["message"]["content"] is None, (form, answer)
            (call,) = answer["message"]["tool_calls"]
            arguments = json.loads(call["function"]["arguments"])
            assert call["function"]["name"] in ("get_weather", "get_time") and isinstance(arguments, dict) and len(call["id"]) == 9, (form, call)
            events = server.stream(path, {**base, **extra})
            parts = [e["choices"][0]["delta"]["tool_calls"][0] for e in events if e["choices"][0]["delta"].get("tool_calls")]
            assert "".join(p["function"]["arguments"] for p in parts) == call["function"]["arguments"], (form, events)
            calls.append(call)
        # Text alone has no marks; without tools they cannot come at all.
        plain = server.ok(path, {**base, "tool_choice": "none", "max_tokens": 20})["choices"][0]["message"]["content"]
        assert not any(mark in plain for mark in MARKS)
        turns = [question, {"role": "assistant", "content": None, "tool_calls": [calls[0]]},
                 {"role": "tool", "tool_call_id": calls[0]["id"], "content": "rain"}]
        server.ok(path, {**base, "messages": turns, "max_tokens": 4})
        # The model hears of its tools whatever the template lists, behind the system's words where there are any.
        said = {**base, "messages": [{"role": "system", "content": "Be brief."}, question], "max_tokens": 1}
        lengths = [server.ok(path, {**said, **extra})["usage"]["prompt_tokens"] for extra in ({"tool_choice": "none", "tools": []}, {})]
        assert lengths[1] > lengths[0] + 40, (form, lengths)
        server.stop()


def keys():
    path = os.path.join(work, "key")
    with open(path, "w") as file:
        file.write("correct horse\n")
    server = Server(tiny, "--api-key-file", path, "--cors", "https://page.example")
    assert server.ask("/health")[0] == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "correct horse"}, {"X-Api-Key": "correct hors"},
                    {"Authorization": "Bearer correct horse "[:-1] + "x"}):
        for path_ in ("/v1/models", "/metrics", "/nothing"):
            status, _, answer = server.ask(path_, headers=headers)
            assert status == 401 and answer["error"]["type"] == "authentication_error", (headers, path_, status)
    assert server.ok("/v1/models", headers={"Authorization": "Bearer correct horse"})["data"][0]["id"] == "tiny"
    assert server.ok("/v1/models", headers={"X-Api-Key": "correct horse"})
    status, headers, _ = server.ask("/v1/models", method="OPTIONS")
    assert status == 204 and headers["Access-Control-Allow-Origin"] == "https://page.example"
    server.stop()


def without_one_mlp():
    """A model that answers otherwise: tiny with the last MLP's output matrix set to zero."""
    model = os.path.join(work, "other")
    os.mkdir(model)
    for name in ("config.json", "tokenizer.json"):
        os.symlink(os.path.join(tiny, name), os.path.join(model, name))
    with open(os.path.join(tiny, "model.safetensors"), "rb") as file:
        data = bytearray(file.read())
    start = 8 + int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8:start])["model.layers.3.mlp.down_proj.weight"]["data_offsets"]
    data[start + begin : start + end] = bytes(end - begin)
    with open(os.path.join(model, "model.safetensors"), "wb") as file:
        file.write(data)
    return model


def two_models():
    """Each answers as it does alone, and only to its name."""
    other = without_one_mlp()
    server = Server(tiny, "--compare", other, "--compare-name", "reduced")
    listed = server.ok("/v1/models")["data"]
    assert [m["id"] for m in listed] == ["tiny", "reduced"] and not listed[0]["chat"]
    assert listed[0]["meta"]["n_params"] == run("info", tiny)["params"]
    body = {"prompt": "The old house", "max_tokens": 16, "temperature": 0}
    want = {name: cli_text(model, "-p", "The old house", "-n", "16")["text"] for name, model in (("tiny", tiny), ("reduced", other))}
    assert want["tiny"] != want["reduced"]
    for name, text in want.items():
        answer = server.ok("/v1/completions", {**body, "model": name})
        assert answer["model"] == name and answer["choices"][0]["text"] == text, (answer, text)
    assert server.ok("/v1/completions", body)["model"] == "tiny"
    status, _, answer = server.ask("/v1/completions", {**body, "model": "nobody"})
    assert status == 404 and answer["error"]["param"] == "model" and "reduced" in answer["error"]["message"], answer
    status, _, answer = server.ask("/v1/completions", {**body, "model": 7})
    assert status == 400 and answer["error"]["param"] == "model", answer
    server.stop()
    for second, words in (((chatty,), "tokenizer"), ((tiny,), "both models")):
        refused = subprocess.run([command, "serve", tiny, *common, "--compare", *second], capture_output=True, timeout=60)
        assert refused.returncode == 2 and words.encode() in refused.stderr, refused


def stopping():
    """After SIGTERM what runs is finished, what is new is refused; a second signal ends at once."""
    server = Server(tiny, "--grace", "60")
    got = []
    body = {"prompt": "The old house", "max_tokens": 300, "temperature": 0, "ignore_eos": True}
    thread = threading.Thread(target=lambda: got.append(server.stream("/v1/completions", body)))
    thread.start()
    until = time.time() + 20
    while server.metric("num_requests_running") == 0 and thread.is_alive():
        assert time.time() < until
    server.process.send_signal(signal.SIGTERM)
    thread.join(60)
    assert got and len(got[0]) > 100, "the stream was cut"
    assert server.process.wait(30) == 0
    server = Server(tiny, "--grace", "60")
    held = begin_long(server)
    server.wait_for("num_requests_running", 1)
    for _ in range(2):
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
    assert server.process.wait(30) == 0
    held.close()
    # service managers and `timeout` send it to the process and then to its group: also behind the loop's end
    server = Server(tiny, "--grace", "0")
    while server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
    assert server.process.returncode == 0, server.process.returncode


chatty = os.path.join(work, "chatty")
os.mkdir(chatty)
for name in ("config.json", "model.safetensors"):
    os.symlink(os.path.join(tiny, name), os.path.join(chatty, name))
with open(os.path.join(tiny, "tokenizer.json"), encoding="utf-8") as file:
    text = file.read().replace("<|begin_of_text|>", "<|im_start|>").replace("<|end_of_text|>", "<|im_end|>")
with open(os.path.join(chatty, "tokenizer.json"), "w", encoding="utf-8") as file:
    file.write(text)

one = Server(tiny)
for test in (answers_are_those_of_the_command, prompts_come_as_strings_and_ids, models_methods_and_metrics, the_page, biases_and_penalties, embeddings_and_descriptions, structured_output, scoring_as_evaluation_harnesses_ask_for_it,
             wrong_requests_are_named, hostile_clients):
    test(one)
    print("ok", test.__name__, flush=True)
one.stop()
conversations(chatty)
print("ok conversations", flush=True)
tools_and_templates(chatty)
print("ok tools_and_templates", flush=True)
tools_of_other_templates(chatty)
print("ok tools_of_other_templates", flush=True)
for test in (prompts_are_logged_when_asked_for, loading_and_times, memory_of_keys_and_values, keys, two_models, requests_run_together, queue_cancel_and_health, slow_and_many_clients, stopping):
    test()
    print("ok", test.__name__, flush=True)
