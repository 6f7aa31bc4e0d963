"""Clients from PyPI, unmodified, against `neuronmlp serve`: the snippets of docs/serving.md, and lm-evaluation-harness compared with
`neuronmlp eval`. What is not installed is skipped with a word. Usage: clients.py COMMAND ROOT WORKDIR"""
import atexit
import glob
import importlib.util
import json
import os
import re
import subprocess
import sys
import time

command, root, work = sys.argv[1:4]
shared = os.path.join(root, "..", "shared")
tiny = os.path.join(root, "models", "tiny")
programs = os.path.dirname(sys.executable)
LIMIT = 100


def serve(*arguments):
    log = os.path.join(work, "log%d" % len(os.listdir(work)))
    with open(log, "w") as file:
        process = subprocess.Popen([command, "serve", *arguments, "--port", "0", "--device", "cpu", "--precision", "f32"], stderr=file)
    atexit.register(process.kill)
    until = time.time() + 60
    while True:
        assert process.poll() is None and time.time() < until, open(log).read()
        for line in open(log):
            if line.endswith("\n") and json.loads(line).get("event") == "ready":
                return process, json.loads(line)["url"]
        time.sleep(0.05)


def snippets():
    """(language, text) of every fenced block of the page."""
    with open(os.path.join(root, "docs", "serving.md"), encoding="utf-8") as file:
        return re.findall(r"```(\w+)\n(.*?)```", file.read(), re.S)


def run_snippet(language, text, url, **replaced):
    text = text.replace("http://127.0.0.1:8080", url)
    for old, new in replaced.items():
        text = text.replace(old, new)
    name = os.path.join(work, "snippet." + language)
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
    environment = {**os.environ, "PATH": programs + ":" + os.environ["PATH"], "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": os.path.join(work, "cache"),
                   "TOKENIZERS_PARALLELISM": "false"}
    out = subprocess.run([sys.executable if language == "python" else "sh", name], capture_output=True, text=True, cwd=work, env=environment,
                         timeout=900)
    assert out.returncode == 0, (text, out.stdout[-2000:], out.stderr[-4000:])
    assert out.stdout.strip(), "the snippet printed nothing: " + text
    return out.stdout


def chat_model():
    """tiny with ChatML tokens, so that it takes messages."""
    folder = os.path.join(work, "chatty")
    os.mkdir(folder)
    for name in ("config.json", "model.safetensors"):
        os.symlink(os.path.join(tiny, name), os.path.join(folder, name))
    with open(os.path.join(tiny, "tokenizer.json"), encoding="utf-8") as file:
        words = file.read().replace("<|begin_of_text|>", "<|im_start|>").replace("<|end_of_text|>", "<|im_end|>")
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        file.write(words)
    return folder


def curl(url):
    out = run_snippet("sh", next(text for language, text in snippets() if "curl" in text), url)
    assert out.rstrip().endswith("data: [DONE]"), out


def openai(url):
    run_snippet("python", next(text for _, text in snippets() if "from openai" in text), url)
    from openai import BadRequestError, OpenAI
    client = OpenAI(base_url=url + "/v1", api_key="any")
    assert [m.id for m in client.models.list()] == ["chatty"] and client.models.retrieve("chatty").id == "chatty"
    reply = client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}], max_tokens=8, temperature=0, logprobs=True,
                                           top_logprobs=2, n=2, seed=1)
    assert len(reply.choices) == 2 and reply.usage.completion_tokens <= 16 and reply.choices[0].logprobs.content[0].top_logprobs
    text = client.completions.create(model="any", prompt=["The old house", "The sea"], max_tokens=4, echo=True, logprobs=1)
    assert text.choices[1].text.startswith("The sea") and text.choices[0].logprobs.token_logprobs[0] is None
    chunks = list(client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}], max_tokens=4, stream=True,
                                                 stream_options={"include_usage": True}))
    assert chunks[-1].usage.completion_tokens <= 4 and chunks[-1].choices == []
    try:
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "x"}], temperature=-1)
        raise AssertionError("a negative temperature was taken")
    except BadRequestError as problem:
        assert problem.param == "temperature"


def langchain_openai(url):
    run_snippet("python", next(text for _, text in snippets() if "langchain_openai" in text), url)
    from langchain_openai import ChatOpenAI, OpenAI
    reply = ChatOpenAI(base_url=url + "/v1", api_key="any", model="any", max_tokens=8, temperature=0).invoke([("system", "Be short."), ("user", "Hi")])
    assert reply.content and reply.usage_metadata["output_tokens"] <= 8, reply
    assert OpenAI(base_url=url + "/v1", api_key="any", model="any", max_tokens=8, temperature=0).invoke("The old house")


def tokenizer_folder():
    """Of a Qwen folder without tokenizer_config.json, transformers takes its own splitting of digits instead of tokenizer.json's."""
    folder = os.path.join(work, "tokenizer")
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(os.path.join(folder, "tokenizer.json")):
        os.symlink(os.path.join(tiny, "tokenizer.json"), os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast"}, file)
    return folder


TASK = """task: nmlp_{name}
dataset_path: json
dataset_kwargs:
  data_files:
    validation: {file}
output_type: multiple_choice
validation_split: validation
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: gold
doc_to_choice: "{{{{choices}}}}"
metric_list:
  - metric: acc
"""


def lm_eval(_):
    """Log-likelihoods of every choice through HTTP and lm-evaluation-harness, and by `neuronmlp eval`."""
    sets = {"piqa": "piqa_valid.jsonl", "arc_easy": "arc_easy_test.jsonl"}
    if not os.path.isdir(os.path.join(shared, "data", "choice")):
        print("SKIPPED: lm_eval needs the question sets of ../shared/data", file=sys.stderr)
        return
    process, url = serve(tiny)
    tasks = os.path.join(work, "tasks")
    os.mkdir(tasks)
    for name, file in sets.items():
        with open(os.path.join(tasks, name + ".yaml"), "w", encoding="utf-8") as out:
            out.write(TASK.format(name=name, file=os.path.abspath(os.path.join(shared, "data", "choice", file))))
    snippet = next(text for _, text in snippets() if "lm_eval" in text)
    run_snippet("sh", snippet, url, **{
        "--tasks piqa": "--tasks nmlp_piqa,nmlp_arc_easy --include_path %s --log_samples --output_path %s" % (tasks, os.path.join(work, "out")),
        "tokenizer=MODEL": "tokenizer=" + tokenizer_folder(), "MODEL": tiny})
    process.terminate()
    for name, file in sets.items():
        path, = glob.glob(os.path.join(work, "out", "**", "samples_nmlp_%s_*.jsonl" % name), recursive=True)
        samples = sorted((json.loads(line) for line in open(path)), key=lambda s: s["doc_id"])
        own = json.loads(subprocess.run([command, "eval", tiny, "--task", name, "--data", os.path.join(shared, "data", "choice", file), "--limit", str(LIMIT),
                                         "--device", "cpu", "--precision", "f32", "--json"], check=True, capture_output=True).stdout)
        assert len(samples) == LIMIT == own["n"]
        worst = 0
        for sample, wanted in zip(samples, own["loglik"]):
            got = [float(r[0][0]) for r in sample["resps"]]
            assert len(got) == len(wanted)
            worst = max([worst] + [abs(a - b) for a, b in zip(got, wanted)])
        print("lm_eval %s: %d questions, largest difference of a log-likelihood %.2g" % (name, len(samples), worst))
        assert worst < 1e-4, (name, worst)


def guidellm(url):
    report = os.path.join(work, "guide.json")
    out = subprocess.run([os.path.join(programs, "guidellm"), "run", "--backend", "kind=openai_http,target=%s,request_format=/v1/completions" % url,
                          "--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6",
                          "--data", "kind=synthetic_text,prompt_tokens=24,output_tokens=8", "--tokenizer", "kind=hf_auto,model=" + tokenizer_folder(),
                          "--output", "kind=json,path=" + report, "--disable-progress"],
                         capture_output=True, text=True, timeout=300, cwd=work, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert out.returncode == 0, (out.stdout[-3000:], out.stderr[-3000:])
    with open(report, encoding="utf-8") as file:
        requests = json.load(file)["benchmarks"][0]["requests"]
    assert len(requests["successful"]) == 6 and not requests["errored"] and not requests["incomplete"], out.stdout[-3000:]


chatting, address = serve(chat_model())
n = 0
curl(address)
for module, test in (("openai", openai), ("langchain_openai", langchain_openai), ("lm_eval", lm_eval), ("guidellm", guidellm)):
    if importlib.util.find_spec(module) is None:
        print("SKIPPED: the Python package %s is not installed; `pip install -r tests/server/clients.txt` into the environment that"
              " NMLP_TEST_CLIENTS names" % module, file=sys.stderr)
        continue
    test(address)
    n += 1
    print("ok", module, flush=True)
chatting.terminate()
sys.exit(0 if n else 77)
