"""The Python package over the shared library, against the command and against itself: package.py COMMAND ROOT WORK."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

COMMAND, ROOT, WORK = sys.argv[1:4]
TINY = os.path.join(ROOT, "models/tiny")
sys.path.insert(0, os.path.join(ROOT, "python"))
import neuronmlp  # noqa: E402
from neuronmlp import _library  # noqa: E402

QUICK = {"calibration_tokens": 512, "heldout_tokens": 128, "context": 64, "rounds": 0}
PROMPT = "The old house"


def command(*words):
    return json.loads(subprocess.run([COMMAND, *words, "--json"], check=True, capture_output=True).stdout)


class Layout(unittest.TestCase):
    def test_structs_are_those_of_the_headers(self):
        names = {
            "Err": "nmlp_err", "LlmOptions": "nmlp_llm_options", "LlmInfo": "nmlp_llm_info", "LlmMessage": "nmlp_llm_message",
            "LlmLogprob": "nmlp_llm_logprob", "LlmToken": "nmlp_llm_token", "LlmRequest": "nmlp_llm_request", "LlmResult": "nmlp_llm_result",
            "PerplexityOptions": "nmlp_llm_perplexity_options", "PerplexityResult": "nmlp_llm_perplexity_result",
            "CompressionOptions": "nmlp_compression_options", "CompressionResult": "nmlp_compression_result",
            "MultipleChoiceOptions": "nmlp_llm_multiple_choice_options", "MultipleChoiceResult": "nmlp_llm_multiple_choice_result",
            "QuantizationOptions": "nmlp_quantization_options", "QuantizationResult": "nmlp_quantization_result",
            "OptimizeOptions": "nmlp_optimize_options", "OptimizeResult": "nmlp_optimize_result",
        }
        lines, ours = [], []
        for python_name, c_name in names.items():
            struct = getattr(_library, python_name)
            lines.append(f'printf("%zu\\n", sizeof({c_name}));')
            ours.append(_library.ctypes.sizeof(struct))
            for field, _ in struct._fields_:
                lines.append(f'printf("%zu\\n", offsetof({c_name}, {field}));')
                ours.append(getattr(struct, field).offset)
        source = os.path.join(WORK, "layout.c")
        with open(source, "w") as f:
            f.write("#include <stddef.h>\n#include <stdio.h>\n#include <neuronmlp/neuronmlp.h>\nint main(void) {" + "".join(lines) + "}\n")
        generated = os.path.join(os.path.dirname(COMMAND), "generated/include")
        program = os.path.join(WORK, "layout")
        subprocess.run(["cc", "-I", os.path.join(ROOT, "include"), "-I", generated, source, "-o", program], check=True)
        self.assertEqual([int(n) for n in subprocess.run([program], capture_output=True, check=True).stdout.split()], ours)

    def test_version_is_the_library_s_and_the_build_s(self):
        with open(os.path.join(ROOT, "CMakeLists.txt")) as f:
            version = re.search(r"project\(neuronmlp VERSION ([0-9.]+)", f.read()).group(1)
        self.assertEqual(neuronmlp.__version__, version)
        self.assertEqual(neuronmlp.library_version(), version)
        self.assertEqual(neuronmlp.library_path(), os.environ["NEURONMLP_LIBRARY"])
        _library._check_version(version + ".9", "x")
        with self.assertRaisesRegex(neuronmlp.LibraryError, "is version 9.9.0, this package is for"):
            _library._check_version("9.9.0", "x")

    def test_a_missing_library_is_an_import_error_that_says_what_to_do(self):
        code = "import neuronmlp\ntry: neuronmlp.Model('x')\nexcept ImportError as e: print(e)"
        env = {**os.environ, "NEURONMLP_LIBRARY": "/no/such.so", "PYTHONPATH": os.path.join(ROOT, "python")}
        said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
        self.assertIn("/no/such.so", said)
        self.assertIn("NEURONMLP_LIBRARY", said)


class Running(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = neuronmlp.Model(TINY, device="cpu")

    @classmethod
    def tearDownClass(cls):
        cls.model.close()

    def test_info_is_the_command_s(self):
        want = command("info", TINY)
        info = self.model.info
        self.assertEqual((info.hidden, info.intermediate, info.n_layers, info.params), (want["hidden"], want["intermediate"], want["layers"], want["params"]))

    def test_generate_says_what_the_command_says(self):
        want = command("run", TINY, "-p", PROMPT, "-n", "12", "--device", "cpu")
        answer = self.model.generate(PROMPT, max_new=12)
        self.assertEqual((answer.text, answer.ids, answer.finish), (want["text"], want["ids"], "length"))
        self.assertEqual(self.model.generate(self.model.tokenize(PROMPT), max_new=12).ids, want["ids"])
        sampled = command("run", TINY, "-p", PROMPT, "-n", "12", "--device", "cpu", "--temp", "0.9", "--top-k", "40", "--seed", "7")
        self.assertEqual(self.model.generate(PROMPT, max_new=12, temperature=0.9, top_k=40, seed=7, fresh=True).ids, sampled["ids"])

    def test_a_stream_s_pieces_are_the_answer(self):
        whole = self.model.generate(PROMPT, max_new=20)
        stream = self.model.stream(PROMPT, max_new=20)
        pieces = list(stream)
        self.assertGreater(len(pieces), 5)
        self.assertEqual("".join(pieces), whole.text)
        self.assertEqual(stream.answer.ids, whole.ids)
        self.assertEqual(list(stream), [])

    def test_a_stream_that_is_left_ends(self):
        stream = self.model.stream(PROMPT, max_new=400, ignore_eos=True)
        first = next(stream)
        stream.close()
        self.assertEqual(stream.answer.finish, "caller")
        self.assertLess(stream.answer.generated_tokens, 400)
        self.assertTrue(stream.answer.text.startswith(first))
        self.assertEqual(self.model.generate(PROMPT, max_new=3).generated_tokens, 3)

    def test_stop_strings_and_log_probabilities(self):
        whole = self.model.generate(PROMPT, max_new=12, top_logprobs=3)
        self.assertEqual([t.id for t in whole.tokens], whole.ids)
        for token in whole.tokens:  # greedy: the token is the likeliest
            self.assertEqual((token.id, token.logprob), token.top[0])
            self.assertEqual(len(token.top), 3)
        cut = self.model.generate(PROMPT, max_new=12, stop="house")
        self.assertEqual((cut.text, cut.finish), (whole.text.split("house")[0], "stop"))

    def test_tokens_are_the_command_s_and_come_back(self):
        text = "Grüße aus dem alten Haus \U0001f3e0!"
        ids = self.model.tokenize(text)
        self.assertEqual(ids, command("tokenize", TINY, "-p", text)["ids"])
        self.assertEqual(self.model.detokenize(self.model.tokenize(text, bos=False)), text)

    def test_scores_are_log_softmax_of_the_logits(self):
        ids = self.model.tokenize("The old house stood at the end of the lane")
        exact = neuronmlp.Model(TINY, device="cpu", precision="f32")  # bf16: bits depend on the rows of a step
        self.addCleanup(exact.close)
        scores, rows = exact.score(ids), exact.logits(ids)
        self.assertTrue(math.isnan(scores[0]))
        for i in range(1, len(ids)):
            row = rows[i - 1]
            top = max(row)
            total = math.log(math.fsum(math.exp(x - top) for x in row)) + top
            self.assertAlmostEqual(scores[i], row[ids[i]] - total, delta=1e-4)
        self.assertEqual(exact.logits(ids, first=len(ids) - 1)[0], rows[-1])

    def test_perplexity_is_the_command_s(self):
        with open(os.path.join(TINY, "calib.txt")) as f:
            text = f.read(3000)
        path = os.path.join(WORK, "text")
        with open(path, "w") as f:
            f.write(text)
        want = command("eval", TINY, "--text", path, "--ctx", "128", "--max-tokens", "400", "--device", "cpu")
        with neuronmlp.Model(TINY, device="cpu", precision="f32") as exact:
            got = exact.perplexity(text, context=128, max_tokens=400)
        self.assertAlmostEqual(got.nll, want["nll"], delta=1e-4)

    def test_accuracy_is_the_command_s(self):
        data = os.path.join(WORK, "questions.jsonl")
        with open(data, "w") as f:
            for gold in range(3):
                f.write(json.dumps({"question": "The cat sat on", "choices": ["the mat", "of of", "xq"], "gold": gold}) + "\n")
        theirs = command("eval", TINY, "--task", "piqa", "--data", data)
        with neuronmlp.Model(TINY, device="cpu", precision="f32") as exact:
            ours = exact.multiple_choice("piqa", data=data)
            self.assertEqual(exact.multiple_choice("piqa", data=data, limit=2).n, 2)
        self.assertEqual([ours.n, ours.acc, ours.acc_norm], [theirs[key] for key in ("n", "acc", "acc_norm")])
        self.assertAlmostEqual(ours.acc_stderr, theirs["acc_stderr"], places=9)

    def test_a_conversation_is_answered_as_the_command_does(self):
        folder = os.path.join(WORK, "chatty")  # models/tiny with its special tokens under ChatML's names
        shutil.copytree(TINY, folder)
        with open(os.path.join(folder, "tokenizer.json")) as f:
            tokenizer = f.read().replace("<|begin_of_text|>", "<|im_start|>").replace("<|end_of_text|>", "<|im_end|>")
        with open(os.path.join(folder, "tokenizer.json"), "w") as f:
            f.write(tokenizer)
        want = command("run", folder, "--chat", "--system", "Be brief.", "-p", "Where is the house?", "-n", "12", "--device", "cpu")
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is the house?"}]
        with neuronmlp.Model(folder, device="cpu") as model:
            answer = model.chat(messages, max_new=12)
            self.assertEqual((answer.text, answer.prompt_tokens), (want["text"], want["prompt_tokens"]))
            self.assertEqual(len(model.tokenize_chat(messages)), want["prompt_tokens"])
            self.assertEqual("".join(model.stream(messages, max_new=12)), want["text"])

    def test_failures_are_exceptions_that_name_what_is_wrong(self):
        with self.assertRaisesRegex(neuronmlp.MissingError, "/no/such"):
            neuronmlp.Model("/no/such")
        with self.assertRaisesRegex(ValueError, "device is \"tpu\"") as caught:
            neuronmlp.Model(TINY, device="tpu")
        self.assertEqual(caught.exception.field, "device")
        with self.assertRaises(neuronmlp.Error):
            self.model.generate([10**6], max_new=1)
        with self.assertRaisesRegex(TypeError, "max_tokens"):
            self.model.generate(PROMPT, max_tokens=3)
        with self.assertRaises(neuronmlp.Error):
            list(self.model.stream(PROMPT, temperature=-1.0))
        closed = neuronmlp.Model(TINY, device="cpu", threads=1)
        closed.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            closed.generate(PROMPT)


class Compressing(unittest.TestCase):
    def test_compress_writes_what_the_command_writes(self):
        stages = set()
        out, theirs = os.path.join(WORK, "ours"), os.path.join(WORK, "theirs")
        result = neuronmlp.compress(TINY, out, 0.2, progress=lambda stage, done, total, unit: stages.add(stage), **QUICK)
        want = command("compress", TINY, "-o", theirs, "--ratio", "0.2", "--calib-tokens", "512", "--heldout", "128", "--ctx", "64", "--rounds", "0")
        self.assertEqual(result.params_after, want["params_after"])
        self.assertAlmostEqual(result.removed, want["removed"], delta=1e-9)
        self.assertGreater(len(stages), 1)
        with open(os.path.join(out, "model.safetensors"), "rb") as a, open(os.path.join(theirs, "model.safetensors"), "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_quantize_writes_what_the_command_writes(self):
        ours, theirs = os.path.join(WORK, "quantised"), os.path.join(WORK, "quantised-by-command")
        result = neuronmlp.quantize(TINY, ours, "q4", calibration_tokens=512, heldout_tokens=128, context=64)
        said = command("quantize", TINY, "-o", theirs, "--format", "q4", "--calib-tokens", "512", "--heldout", "128", "--ctx", "64")
        self.assertEqual([result.bytes_after, result.kl], [said["bytes_after"], said["kl"]])
        with open(os.path.join(ours, "model.safetensors"), "rb") as a, open(os.path.join(theirs, "model.safetensors"), "rb") as b:
            self.assertEqual(a.read(), b.read())
        with self.assertRaisesRegex(ValueError, "format"):
            neuronmlp.quantize(TINY, os.path.join(WORK, "no"), "q5")

    def test_a_progress_function_ends_it_and_its_errors_come_through(self):
        out = os.path.join(WORK, "cancelled")
        with self.assertRaises(neuronmlp.Interrupted):
            neuronmlp.compress(TINY, out, 0.2, progress=lambda *_: False, **QUICK)
        with self.assertRaises(ZeroDivisionError):
            neuronmlp.compress(TINY, out, 0.2, progress=lambda *_: 1 / 0, **QUICK)
        self.assertFalse(os.path.exists(out))

    def test_ctrl_c_ends_it_and_leaves_nothing_half_written(self):
        out = os.path.join(WORK, "interrupted")
        code = (
            "import sys, neuronmlp\n"
            f"try: neuronmlp.compress({TINY!r}, {out!r}, 0.2, progress=lambda *_: print('on', flush=True))\n"
            "except KeyboardInterrupt: sys.exit(55)\n"
        )
        env = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}
        child = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
        child.stdout.readline()
        begin = time.monotonic()
        child.send_signal(signal.SIGINT)
        child.communicate()
        self.assertEqual(child.returncode, 55)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertFalse(os.path.exists(out))

    def test_optimize_writes_a_model_within_the_loss(self):
        out = os.path.join(WORK, "fast")
        few = {"calibration_tokens": 512, "heldout_tokens": 128, "verify_tokens": 128, "context": 64}
        result = neuronmlp.optimize(TINY, out, max_loss=0.02, target="trn1", tile=32, **few)
        self.assertTrue(result.simulated)
        self.assertGreaterEqual(result.speedup, 1)
        self.assertIn(result.verdict, ("leave it dense", "bits only", "ranks only", "ranks and bits"))
        self.assertTrue(os.path.exists(os.path.join(out, "config.json")))
        with self.assertRaisesRegex(ValueError, "workload"):
            neuronmlp.optimize(TINY, out, workload="dream")

    def test_wrong_options_are_refused(self):
        with self.assertRaisesRegex(ValueError, "ratio"):
            neuronmlp.compress(TINY, os.path.join(WORK, "x"), 1.5)
        with self.assertRaisesRegex(TypeError, "rato"):
            neuronmlp.compress(TINY, os.path.join(WORK, "x"), rato=0.2)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=0)
