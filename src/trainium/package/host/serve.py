"""Serves the package's model over HTTP.

    ./run.sh serve [--host 127.0.0.1] [--port 8000]   vLLM where it is installed, else the plain server below
    ./run.sh serve --plain [--cpu]                    Hugging Face's generate(), one request at a time

The plain server answers GET /health and POST /v1/completions (prompt, max_tokens, temperature 0 only); it is there to try a
package, not for load.
"""
import argparse
import http.server
import importlib.util
import json
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))


def run_vllm(options, package):
    checkpoint = os.path.join(FOLDER, "checkpoint")
    os.environ["PYTHONPATH"] = os.pathsep.join([FOLDER] + [p for p in [os.environ.get("PYTHONPATH")] if p])
    package.check_runtime()
    command = ["vllm", "serve", checkpoint, "--host", options.host, "--port", str(options.port),
               "--tensor-parallel-size", str(package.tp), "--max-model-len", str(options.context),
               "--max-num-seqs", str(options.sequences)]
    print(" ".join(command), file=sys.stderr, flush=True)
    os.execvp(command[0], command)


class Generator:
    def __init__(self, package, device):
        import torch
        from transformers import AutoTokenizer
        from whole_model import load
        self.torch, self.device = torch, device
        self.tokenizer = AutoTokenizer.from_pretrained(os.path.join(FOLDER, "checkpoint"))
        self.model = load(package)
        if device is not None:
            self.model = self.model.to(device)

    def complete(self, prompt, count):
        ids = self.tokenizer(prompt, return_tensors="pt").input_ids
        if self.device is not None:
            ids = ids.to(self.device)
        with self.torch.no_grad():
            out = self.model.generate(ids, attention_mask=self.torch.ones_like(ids), max_new_tokens=count, do_sample=False)
        new = out[0, ids.shape[1]:].cpu()
        return self.tokenizer.decode(new, skip_special_tokens=True), ids.shape[1], len(new)


def handler(generator, name):
    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, code, body):
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            self.answer(*((200, {"status": "ok"}) if self.path == "/health" else (404, {"error": "not found"})))

        def do_POST(self):
            if self.path != "/v1/completions":
                return self.answer(404, {"error": "not found"})
            try:
                request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                prompt, count = request["prompt"], int(request.get("max_tokens", 16))
                if not isinstance(prompt, str) or not 1 <= count <= 4096:
                    raise ValueError("prompt must be a text, max_tokens 1 to 4096")
                if request.get("temperature", 0) not in (0, 0.0):
                    raise ValueError("the plain server samples greedily: temperature must be 0")
            except (ValueError, KeyError, TypeError) as error:
                return self.answer(400, {"error": f"{type(error).__name__}: {error}"})
            text, asked, made = generator.complete(prompt, count)
            return self.answer(200, {"object": "text_completion", "model": name, "choices": [{"index": 0, "text": text}],
                                     "usage": {"prompt_tokens": asked, "completion_tokens": made}})

    return Handler


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--context", type=int, default=2048, help="tokens of prompt and answer together (vLLM)")
    parser.add_argument("--sequences", type=int, default=8, help="requests at a time (vLLM)")
    parser.add_argument("--plain", action="store_true", help="the plain server even where vLLM is installed")
    parser.add_argument("--cpu", action="store_true", help="plain server without a NeuronCore")
    options = parser.parse_args()
    from mlp import Package
    package = Package(FOLDER)
    if not options.plain and not options.cpu and importlib.util.find_spec("vllm") and importlib.util.find_spec("vllm_neuron"):
        run_vllm(options, package)
    if package.tp > 1:
        print("the plain server runs one rank; serve packages with tensor parallelism through vLLM", file=sys.stderr)
        return 2
    device = None
    if not options.cpu:
        from whole_model import neuron_device
        package.check_runtime()
        device, why = neuron_device()
        if device is None:
            print(f"no NeuronCore could be used ({why}); --cpu serves without one", file=sys.stderr)
            return 2
    server = http.server.HTTPServer((options.host, options.port), handler(Generator(package, device), package.manifest["model"]))
    print(f"listening on http://{options.host}:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
