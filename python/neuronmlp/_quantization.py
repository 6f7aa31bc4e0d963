"""Storing a checkpoint in fewer bits: nmlp_quantize_model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional

from . import _library as lib
from ._work import Path, Progress, convert, fill, values_of


@dataclass(frozen=True)
class Quantization:
    """What quantising did. `kl` and perplexities are of held-out tokens, NaN where none were asked for."""

    path: str
    params: int
    bytes_before: int
    bytes_after: int
    bits_per_weight: float
    calibration_tokens: int
    heldout_tokens: int
    kl: float
    ppl_before: float
    ppl_after: float
    seconds: float


def quantize(
    model: Path,
    output: Path,
    format: str = "q8",
    *,
    group: int = 32,
    head: str = "q8",
    budget_bytes: int = 0,
    calibration: Optional[Path] = None,
    calibration_tokens: Optional[int] = None,
    heldout_tokens: Optional[int] = None,
    context: Optional[int] = None,
    precision: Optional[str] = None,
    work_dir: Optional[Path] = None,
    resume: bool = False,
    threads: int = 0,
    isa: Optional[str] = None,
    progress: Optional[Progress] = None,
) -> Quantization:
    """Writes the checkpoint in `model`, dense or compressed, with weights of 8 to 4 bits to `output`.

    `format` is "q8", "q6", "q6m", "q5m", "q4", "q4z", "q4m" or "fp8", `head` one of them for embedding and output matrix, or
    "bf16"; `budget_bytes` chooses a format for each matrix instead. Progress and Ctrl-C as of `compress`.
    """
    options = lib.init(lib.QuantizationOptions)
    options.group, options.budget_bytes, options.resume, options.n_threads = group, budget_bytes, int(resume), threads
    fill(
        options,
        {"calibration_tokens": calibration_tokens, "heldout_tokens": heldout_tokens, "context": context},
        {"format": format, "head": head, "calibration": calibration, "precision": precision, "work_dir": work_dir, "isa": isa},
    )
    result = convert("nmlp_quantize_model", model, output, options, lib.QuantizationResult, progress)
    return Quantization(path=os.fspath(output), **values_of(result))
