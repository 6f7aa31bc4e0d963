"""Finds libneuronmlp, and its structs and functions as ctypes has them. Field for field include/neuronmlp/*.h."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from ctypes import CFUNCTYPE, POINTER, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, List, Optional

from ._errors import BY_CODE, Error, LibraryError
from ._version import __version__

OnProgress = CFUNCTYPE(c_int, c_void_p, c_char_p, c_double, c_double, c_char_p)
OnText = CFUNCTYPE(c_int, c_void_p, POINTER(c_char), c_size_t)
OnCancel = CFUNCTYPE(c_int, c_void_p)


class Err(ctypes.Structure):
    _fields_ = [("code", c_int), ("message", c_char * 1024), ("hint", c_char * 256), ("field", c_char * 64)]


class LlmOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("n_threads", c_int),
        ("isa", c_char_p),
        ("context", c_int64),
        ("device", c_char_p),
        ("precision", c_char_p),
        ("on_progress", OnProgress),
        ("progress_ctx", c_void_p),
        ("draft_dir", c_char_p),
    ]


class LlmInfo(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("context", c_int64),
        ("max_context", c_int64),
        ("vocab", c_int64),
        ("n_layers", c_int64),
        ("hidden", c_int64),
        ("intermediate", c_int64),
        ("params", c_int64),
        ("bytes", c_int64),
        ("kernels", c_char_p),
    ]


class LlmMessage(ctypes.Structure):
    _fields_ = [("role", c_char_p), ("content", c_char_p)]


class LlmLogprob(ctypes.Structure):
    _fields_ = [("id", c_int32), ("logprob", c_double)]


class LlmToken(ctypes.Structure):
    _fields_ = [("id", c_int32), ("logprob", c_double), ("top", POINTER(LlmLogprob)), ("n_top", c_int)]


OnToken = CFUNCTYPE(c_int, c_void_p, POINTER(LlmToken))


class LlmRequest(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("max_new", c_int64),
        ("temperature", c_double),
        ("top_k", c_int64),
        ("top_p", c_double),
        ("min_p", c_double),
        ("seed", c_uint64),
        ("repetition_penalty", c_double),
        ("prompt", c_char_p),
        ("messages", POINTER(LlmMessage)),
        ("n_messages", c_size_t),
        ("ids", POINTER(c_int32)),
        ("n_ids", c_size_t),
        ("no_bos", c_int),
        ("ignore_eos", c_int),
        ("fresh", c_int),
        ("stop", POINTER(c_char_p)),
        ("n_stop", c_size_t),
        ("logprobs", c_int),
        ("top_logprobs", c_int),
        ("on_text", OnText),
        ("on_token", OnToken),
        ("on_cancel", OnCancel),
        ("ctx", c_void_p),
    ]


class LlmResult(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("text", POINTER(c_char)),
        ("text_bytes", c_size_t),
        ("ids", POINTER(c_int32)),
        ("prompt_tokens", c_int64),
        ("cached_tokens", c_int64),
        ("generated_tokens", c_int64),
        ("finish", c_int),
        ("ttft_ms", c_double),
        ("decode_ms", c_double),
        ("decode_tok_s", c_double),
        ("proposed_tokens", c_int64),
        ("accepted_tokens", c_int64),
    ]


class PerplexityOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("context", c_int64),
        ("stride", c_int64),
        ("max_tokens", c_int64),
        ("bos", c_int),
        ("on_progress", OnProgress),
        ("progress_ctx", c_void_p),
    ]


class PerplexityResult(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("scored_tokens", c_int64),
        ("nll", c_double),
        ("ppl", c_double),
        ("word_ppl", c_double),
        ("bits_per_byte", c_double),
        ("seconds", c_double),
    ]


class MultipleChoiceOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("task", c_char_p),
        ("task_file", c_char_p),
        ("data", c_char_p),
        ("labels", c_char_p),
        ("limit", c_int64),
        ("bos", c_int),
        ("on_progress", OnProgress),
        ("progress_ctx", c_void_p),
    ]


class MultipleChoiceResult(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("n", c_int64),
        ("acc", c_double),
        ("acc_stderr", c_double),
        ("acc_norm", c_double),
        ("acc_norm_stderr", c_double),
        ("n_truncated", c_int64),
        ("seconds", c_double),
    ]


class CompressionOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("ratio", c_double),
        ("tile", c_int64),
        ("uniform", c_int),
        ("refit", c_int),
        ("calibration", c_char_p),
        ("calibration_tokens", c_int64),
        ("heldout_tokens", c_int64),
        ("context", c_int64),
        ("resume", c_int),
        ("n_threads", c_int),
        ("isa", c_char_p),
        ("on_progress", OnProgress),
        ("progress_ctx", c_void_p),
        ("budget_ms", c_double),
        ("target", c_char_p),
        ("precision", c_char_p),
        ("train_steps", c_int64),
        ("train_text", c_char_p),
        ("work_dir", c_char_p),
        ("plain_svd", c_int),
        ("no_row_weights", c_int),
        ("residual_tokens", c_int),
        ("joint", c_int),
        ("no_shrink", c_int),
        ("cap", c_double),
        ("rounds", c_int),
        ("attention", c_int),
        ("budget_bytes", c_int64),
        ("slices", c_int64),
    ]


class CompressionResult(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("params_before", c_int64),
        ("params_after", c_int64),
        ("mlp_params_before", c_int64),
        ("mlp_params_after", c_int64),
        ("bytes_before", c_int64),
        ("bytes_after", c_int64),
        ("calibration_tokens", c_int64),
        ("heldout_tokens", c_int64),
        ("heldout_ppl_before", c_double),
        ("heldout_ppl_after", c_double),
        ("trained_ppl_before", c_double),
        ("trained_ppl_after", c_double),
        ("time_before_ms", c_double),
        ("time_after_ms", c_double),
        ("seconds", c_double),
    ]


class QuantizationOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("format", c_char_p),
        ("group", c_int),
        ("head", c_char_p),
        ("budget_bytes", c_int64),
        ("calibration", c_char_p),
        ("calibration_tokens", c_int64),
        ("heldout_tokens", c_int64),
        ("context", c_int64),
        ("resume", c_int),
        ("work_dir", c_char_p),
        ("n_threads", c_int),
        ("isa", c_char_p),
        ("precision", c_char_p),
        ("on_progress", OnProgress),
        ("progress_ctx", c_void_p),
    ]


class QuantizationResult(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("params", c_int64),
        ("bytes_before", c_int64),
        ("bytes_after", c_int64),
        ("bits_per_weight", c_double),
        ("calibration_tokens", c_int64),
        ("heldout_tokens", c_int64),
        ("kl", c_double),
        ("ppl_before", c_double),
        ("ppl_after", c_double),
        ("seconds", c_double),
    ]


class OptimizeOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("target", c_char_p),
        ("workload", c_char_p),
        ("max_loss", c_double),
        ("minutes", c_double),
        ("calibration", c_char_p),
        ("calibration_tokens", c_int64),
        ("heldout_tokens", c_int64),
        ("verify_tokens", c_int64),
        ("context", c_int64),
        ("tile", c_int64),
        ("resume", c_int),
        ("work_dir", c_char_p),
        ("n_threads", c_int),
        ("isa", c_char_p),
        ("on_progress", OnProgress),
        ("progress_ctx", c_void_p),
    ]


class OptimizeResult(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("verdict", c_char * 32),
        ("chosen", c_char * 48),
        ("simulated", c_int),
        ("ms_before", c_double),
        ("ms_after", c_double),
        ("bytes_before", c_int64),
        ("bytes_after", c_int64),
        ("loss", c_double),
        ("loss_error", c_double),
        ("verified_loss", c_double),
        ("verified_loss_error", c_double),
        ("stepped_back", c_int),
        ("seconds", c_double),
    ]


# Functions that return a status and take an nmlp_err last; the rest of their arguments.
_CALLS = {
    "nmlp_llm_open": [POINTER(c_void_p), c_char_p, POINTER(LlmOptions)],
    "nmlp_llm_describe": [c_void_p, POINTER(LlmInfo)],
    "nmlp_llm_run": [c_void_p, POINTER(LlmRequest), POINTER(LlmResult)],
    "nmlp_llm_tokenize": [c_void_p, c_char_p, c_size_t, c_int, POINTER(POINTER(c_int32)), POINTER(c_size_t)],
    "nmlp_llm_tokenize_chat": [c_void_p, POINTER(LlmMessage), c_size_t, POINTER(POINTER(c_int32)), POINTER(c_size_t)],
    "nmlp_llm_detokenize": [c_void_p, POINTER(c_int32), c_size_t, POINTER(POINTER(c_char)), POINTER(c_size_t)],
    "nmlp_llm_score": [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_double)],
    "nmlp_llm_logits": [c_void_p, POINTER(c_int32), c_size_t, c_size_t, POINTER(c_float)],
    "nmlp_llm_perplexity": [c_void_p, c_char_p, c_size_t, POINTER(PerplexityOptions), POINTER(PerplexityResult)],
    "nmlp_llm_multiple_choice": [c_void_p, POINTER(MultipleChoiceOptions), POINTER(MultipleChoiceResult)],
    "nmlp_compress_model": [c_char_p, c_char_p, POINTER(CompressionOptions), POINTER(CompressionResult)],
    "nmlp_quantize_model": [c_char_p, c_char_p, POINTER(QuantizationOptions), POINTER(QuantizationResult)],
    "nmlp_optimize_model": [c_char_p, c_char_p, POINTER(OptimizeOptions), POINTER(OptimizeResult)],
}

_INITS = {
    OptimizeOptions: "nmlp_optimize_options_init",
    OptimizeResult: "nmlp_optimize_result_init",
    LlmOptions: "nmlp_llm_options_init",
    LlmInfo: "nmlp_llm_info_init",
    LlmRequest: "nmlp_llm_request_init",
    LlmResult: "nmlp_llm_result_init",
    PerplexityOptions: "nmlp_llm_perplexity_options_init",
    PerplexityResult: "nmlp_llm_perplexity_result_init",
    MultipleChoiceOptions: "nmlp_llm_multiple_choice_options_init",
    MultipleChoiceResult: "nmlp_llm_multiple_choice_result_init",
    QuantizationOptions: "nmlp_quantization_options_init",
    QuantizationResult: "nmlp_quantization_result_init",
    CompressionOptions: "nmlp_compression_options_init",
    CompressionResult: "nmlp_compression_result_init",
}

_NAME = "libneuronmlp.so.0"


def _candidates() -> List[str]:
    """The file NEURONMLP_LIBRARY names, and no other; else what the loader knows, then usual places it may not know."""
    named = os.environ.get("NEURONMLP_LIBRARY")
    if named:
        return [named]
    places = [_NAME]
    for prefix in dict.fromkeys((sys.prefix, sys.base_prefix, "/usr/local", "/usr", os.path.expanduser("~/.local"))):
        for folder in ("lib", f"lib/{os.uname().machine}-linux-gnu", "lib64"):
            places.append(os.path.join(prefix, folder, _NAME))
    return places


def _check_version(version: str, path: str) -> None:
    if version.split(".")[:2] != __version__.split(".")[:2]:
        raise LibraryError(
            f"{path} is version {version}, this package is for {__version__}",
            hint="install the package that comes with the library: pip install ./python in its sources",
        )


@functools.lru_cache(maxsize=None)
def load() -> Any:
    """The library, its functions declared. Loaded when first used, so that importing the package never fails."""
    tried = []
    for path in _candidates():
        try:
            lib = ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error))
            continue
        lib.nmlp_version.restype = c_char_p
        _check_version(lib.nmlp_version().decode(), path)
        for name, args in _CALLS.items():
            getattr(lib, name).argtypes = [*args, POINTER(Err)]
        for struct, name in _INITS.items():
            getattr(lib, name).argtypes = [POINTER(struct), c_size_t]
            getattr(lib, name).restype = None
        lib.nmlp_llm_close.argtypes = [c_void_p]
        lib.nmlp_llm_close.restype = None
        lib.path = path
        return lib
    first = tried[0] if os.environ.get("NEURONMLP_LIBRARY") else f"{_NAME} was not found"
    raise LibraryError(first, hint="make install, or name its file in NEURONMLP_LIBRARY")


def library_version() -> str:
    """The version of the library in use, e.g. "0.2.0"."""
    return load().nmlp_version().decode()


def library_path() -> str:
    """The file, or the name the system's loader found it by."""
    return load().path


def init(struct: Any) -> Any:
    """A new struct with the library's defaults in it."""
    value = struct()
    getattr(load(), _INITS[struct])(ctypes.byref(value), ctypes.sizeof(struct))
    return value


def call(name: str, *args: Any) -> None:
    """Calls a function of _CALLS; a status other than OK is raised."""
    err = Err()
    status = getattr(load(), name)(*args, ctypes.byref(err))
    if status:
        kind = BY_CODE.get(status, Error)
        raise kind(err.message.decode(errors="replace"), err.hint.decode(), err.field.decode(), status)


def text_or_none(value: Optional[Any]) -> Optional[bytes]:
    """A path or text as C wants it."""
    return None if value is None else os.fspath(value).encode() if not isinstance(value, bytes) else value
