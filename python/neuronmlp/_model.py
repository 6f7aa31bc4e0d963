"""A loaded model: generate, chat, tokenize, score. nmlp_llm_* of the library."""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from array import array
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _library as lib
from ._work import Cancel, Path, Progress, fill, run, values_of

Message = Mapping[str, str]
"""{"role": "system" | "user" | "assistant", "content": TEXT}"""

_FINISH = ("length", "stop", "context", "caller")


@dataclass(frozen=True)
class ModelInfo:
    """Shape and size of a model. `kernels` says what runs it, e.g. "avx512" or "cuda (NVIDIA H200)"."""

    context: int
    max_context: int
    vocab: int
    n_layers: int
    hidden: int
    intermediate: int
    params: int
    bytes: int
    kernels: str


@dataclass(frozen=True)
class Token:
    """A generated token, with natural logarithms of probabilities where they were asked for (else NaN)."""

    id: int
    logprob: float
    top: Tuple[Tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Answer:
    """A finished answer. `finish` is "length", "stop", "context" (full) or "caller" (ended early)."""

    text: str
    ids: List[int]
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    finish: str
    ttft_ms: float
    decode_ms: float
    decode_tok_s: float
    proposed_tokens: int = 0  # by the draft
    accepted_tokens: int = 0  # of them
    tokens: List[Token] = field(default_factory=list)


@dataclass(frozen=True)
class Accuracy:
    """Share of questions whose right choice the model finds likeliest: `acc` by log-probability, `acc_norm` by that per byte."""

    n: int
    acc: float
    acc_stderr: float
    acc_norm: float
    acc_norm_stderr: float
    n_truncated: int
    seconds: float


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of a text: `nll` is the mean per scored token, `ppl` is exp(nll)."""

    scored_tokens: int
    nll: float
    ppl: float
    word_ppl: float
    bits_per_byte: float
    seconds: float


def _ids(ids: Sequence[int]) -> Any:
    return (ctypes.c_int32 * len(ids))(*ids)


def _messages(messages: Sequence[Message]) -> Any:
    return (lib.LlmMessage * len(messages))(*((m["role"].encode(), m["content"].encode()) for m in messages))


class _Request:
    """An nmlp_llm_request and what it points to."""

    def __init__(self, prompt: Any, options: Dict[str, Any], cancel: Cancel, on_piece: Any = None) -> None:
        stop = options.pop("stop", ())
        self.cancel, self.tokens = cancel, []  # type: Cancel, List[Token]
        self.c = c = lib.init(lib.LlmRequest)
        if isinstance(prompt, str):
            c.prompt = prompt.encode()
        elif prompt and isinstance(prompt[0], Mapping):
            self._messages = _messages(prompt)
            c.messages, c.n_messages = self._messages, len(prompt)
        else:
            self._ids = _ids(prompt)
            c.ids, c.n_ids = self._ids, len(prompt)
        if isinstance(stop, str):
            stop = (stop,)
        if stop:
            self._stop = (ctypes.c_char_p * len(stop))(*(s.encode() for s in stop))
            c.stop, c.n_stop = self._stop, len(stop)
        self._set(options)
        c.on_cancel = lib.OnCancel(lambda _ctx: int(cancel.asked))
        if c.logprobs:
            c.on_token = lib.OnToken(self._hear)
        if on_piece:
            c.on_text = lib.OnText(lambda _ctx, text, n: cancel.guard(lambda: on_piece(ctypes.string_at(text, n).decode())))

    def _set(self, options: Dict[str, Any]) -> None:
        known = ("max_new", "temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty", "ignore_eos", "fresh", "logprobs", "top_logprobs")
        bos = options.pop("bos", True)
        self.c.no_bos = int(not bos)
        for name, value in options.items():
            if name not in known:
                raise TypeError(f"there is no option {name!r}; there are bos, stop, {', '.join(known)}")
            setattr(self.c, name, value)
        if self.c.top_logprobs:
            self.c.logprobs = 1

    def _hear(self, _ctx: Any, token: Any) -> int:
        t = token.contents
        self.tokens.append(Token(t.id, t.logprob, tuple((t.top[i].id, t.top[i].logprob) for i in range(t.n_top))))
        return 0


class Stream(Iterator[str]):
    """Pieces of an answer as they are generated; `answer` holds the whole once the last has come.

    Leaving the loop early (or `close()`) ends the answer; until then the model serves this stream only.
    """

    answer: Optional[Answer]

    def __init__(self, model: "Model", prompt: Any, options: Dict[str, Any]) -> None:
        self.answer = None
        self._cancel = Cancel()
        self._pieces: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._error: Optional[BaseException] = None
        request = _Request(prompt, options, self._cancel, self._pieces.put)
        self._thread = threading.Thread(target=self._work, args=(model, request), name="neuronmlp", daemon=True)
        self._thread.start()

    def _work(self, model: "Model", request: _Request) -> None:
        try:
            self.answer = model._run(request)
        except BaseException as error:  # noqa: B902
            self._error = error
        self._pieces.put(None)

    def __next__(self) -> str:
        if not self._thread.is_alive() and self._pieces.empty():
            raise StopIteration
        try:
            piece = self._pieces.get()
        except KeyboardInterrupt:
            self.close()
            raise
        if piece is None:
            self._thread.join()
            if self._error is not None:
                raise self._error
            raise StopIteration
        return piece

    def close(self) -> None:
        """Ends the answer where it is; `answer` then holds what there was."""
        self._cancel.asked = True
        self._thread.join()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_cancel"):
            self._cancel.asked = True


class Model:
    """A Hugging Face checkpoint, dense or compressed, ready to run. Use it in a `with`, or `close()` it.

    `device` is "auto", "cpu" or "cuda"; `precision` "auto", "f32" (exact) or "bf16"; `context` the positions to provide
    (0: the model's maximum, at most 4096); `draft` a smaller model of the same tokenizer that proposes tokens, which
    changes the speed only; `progress(stage, done, total, unit)` hears of loading. Calls from several threads wait for
    each other.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int = 0,
        device: str = "auto",
        precision: str = "auto",
        isa: Optional[str] = None,
        context: int = 0,
        draft: Optional[Path] = None,
        progress: Optional[Progress] = None,
    ) -> None:
        self._handle = ctypes.c_void_p()
        self._lock = threading.Lock()
        options = lib.init(lib.LlmOptions)
        options.n_threads, options.context = threads, context
        options.device, options.precision, options.isa = device.encode(), precision.encode(), lib.text_or_none(isa)
        options.draft_dir = lib.text_or_none(draft)
        cancel = Cancel()
        options.on_progress = cancel.progress(progress)
        folder = lib.text_or_none(path)
        run(lambda: lib.call("nmlp_llm_open", ctypes.byref(self._handle), folder, ctypes.byref(options)), cancel)
        self.path = os.fspath(path)

    def close(self) -> None:
        """Gives its memory and threads back. A stream that is under way must have ended."""
        with self._lock:
            if self._handle:
                lib.load().nmlp_llm_close(self._handle)
                self._handle = ctypes.c_void_p()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def _call(self, name: str, *args: Any) -> None:
        if not self._handle:
            raise ValueError("the model is closed")
        lib.call(name, self._handle, *args)

    @property
    def info(self) -> ModelInfo:
        info = lib.init(lib.LlmInfo)
        with self._lock:
            self._call("nmlp_llm_describe", ctypes.byref(info))
            values = {name: getattr(info, name) for name, _ in lib.LlmInfo._fields_ if name != "struct_bytes"}
        return ModelInfo(**{**values, "kernels": info.kernels.decode()})

    # ---- generate ----

    def _run(self, request: _Request) -> Answer:
        result = lib.init(lib.LlmResult)
        with self._lock:
            self._call("nmlp_llm_run", ctypes.byref(request.c), ctypes.byref(result))
            text = ctypes.string_at(result.text, result.text_bytes).decode() if result.text else ""
            ids = result.ids[: result.generated_tokens] if result.ids else []
        return Answer(
            text, ids, result.prompt_tokens, result.cached_tokens, result.generated_tokens, _FINISH[result.finish],
            result.ttft_ms, result.decode_ms, result.decode_tok_s,
            result.proposed_tokens, result.accepted_tokens, request.tokens,
        )

    def generate(self, prompt: Union[str, Sequence[int]], **options: Any) -> Answer:
        """Continues a text or token ids and returns the whole answer. Ctrl-C ends it.

        Options: max_new (128), temperature (0: greedy), top_k, top_p, min_p, seed, repetition_penalty, stop (a string or
        several), bos (True), ignore_eos, fresh, logprobs, top_logprobs.
        """
        cancel = Cancel()
        request = _Request(prompt, options, cancel)
        return run(lambda: self._run(request), cancel)

    def stream(self, prompt: Union[str, Sequence[int], Sequence[Message]], **options: Any) -> Stream:
        """The same as an iterator over pieces of text; a list of messages is a conversation to answer."""
        return Stream(self, prompt, options)

    def chat(self, messages: Sequence[Message], **options: Any) -> Answer:
        """Answers a conversation by the model's chat template. Options as of generate."""
        cancel = Cancel()
        request = _Request(list(messages), options, cancel)
        return run(lambda: self._run(request), cancel)

    # ---- tokens ----

    def tokenize(self, text: str, *, bos: bool = True) -> List[int]:
        """Token ids of a text, as a prompt has them."""
        data, ids, n = text.encode(), ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        with self._lock:
            self._call("nmlp_llm_tokenize", data, len(data), int(not bos), ctypes.byref(ids), ctypes.byref(n))
            return ids[: n.value]

    def tokenize_chat(self, messages: Sequence[Message]) -> List[int]:
        """Token ids of a conversation, as `chat` gives it to the model."""
        ids, n = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        with self._lock:
            self._call("nmlp_llm_tokenize_chat", _messages(messages), len(messages), ctypes.byref(ids), ctypes.byref(n))
            return ids[: n.value]

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        text, n = ctypes.POINTER(ctypes.c_char)(), ctypes.c_size_t()
        with self._lock:
            self._call("nmlp_llm_detokenize", _ids(ids), len(ids), ctypes.byref(text), ctypes.byref(n))
            return ctypes.string_at(text, n.value).decode()

    # ---- score ----

    def score(self, text: Union[str, Sequence[int]]) -> List[float]:
        """log p of each token given those before it; the first is NaN. A text is tokenized first."""
        ids = self.tokenize(text) if isinstance(text, str) else list(text)
        out = (ctypes.c_double * len(ids))()
        with self._lock:
            self._call("nmlp_llm_score", _ids(ids), len(ids), out)
        return list(out)

    def logits(self, ids: Sequence[int], first: int = 0) -> List["array[float]"]:
        """Logits after each of the tokens first, first + 1, …: a row of float32 with an entry for each word."""
        n, vocab = max(len(ids) - first, 0), self.info.vocab
        out = (ctypes.c_float * (n * vocab))()
        with self._lock:
            self._call("nmlp_llm_logits", _ids(ids), len(ids), first, out)
        rows = memoryview(out).cast("B").cast("f")
        return [array("f", rows[i * vocab : (i + 1) * vocab]) for i in range(n)]

    def perplexity(
        self,
        text: str,
        *,
        context: int = 0,
        stride: int = 0,
        max_tokens: int = 0,
        bos: bool = False,
        progress: Optional[Progress] = None,
    ) -> Perplexity:
        """Perplexity of a text in windows of `context` tokens. For figures to compare, open the model with f32."""
        options, result, data, cancel = lib.init(lib.PerplexityOptions), lib.init(lib.PerplexityResult), text.encode(), Cancel()
        options.context, options.stride, options.max_tokens, options.bos = context, stride, max_tokens, int(bos)
        options.on_progress = cancel.progress(progress)

        def work() -> None:
            with self._lock:
                self._call("nmlp_llm_perplexity", data, len(data), ctypes.byref(options), ctypes.byref(result))

        run(work, cancel)
        return Perplexity(result.scored_tokens, result.nll, result.ppl, result.word_ppl, result.bits_per_byte, result.seconds)

    def multiple_choice(
        self,
        task: Optional[str] = None,
        *,
        data: Path,
        task_file: Optional[Path] = None,
        labels: Optional[Path] = None,
        limit: int = 0,
        bos: int = 0,
        progress: Optional[Progress] = None,
    ) -> Accuracy:
        """Accuracy on the questions in `data`, of a built-in task or one that `task_file` describes. For figures to compare,
        open the model with f32."""
        options, result, cancel = lib.init(lib.MultipleChoiceOptions), lib.init(lib.MultipleChoiceResult), Cancel()
        options.limit, options.bos = limit, bos
        options.on_progress = cancel.progress(progress)
        fill(options, {}, {"task": task, "task_file": task_file, "data": data, "labels": labels})

        def work() -> None:
            with self._lock:
                self._call("nmlp_llm_multiple_choice", ctypes.byref(options), ctypes.byref(result))

        run(work, cancel)
        return Accuracy(**values_of(result))
