"""Compressing a checkpoint: nmlp_compress_model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Optional

from . import _library as lib
from ._work import Path, Progress, convert, fill, values_of


@dataclass(frozen=True)
class Compression:
    """What compressing did. Perplexities are of held-out tokens, NaN where none were asked for."""

    path: str
    params_before: int
    params_after: int
    mlp_params_before: int
    mlp_params_after: int
    bytes_before: int
    bytes_after: int
    calibration_tokens: int
    heldout_tokens: int
    heldout_ppl_before: float
    heldout_ppl_after: float
    trained_ppl_before: float
    trained_ppl_after: float
    time_before_ms: float
    time_after_ms: float
    seconds: float

    @property
    def removed(self) -> float:
        """The fraction of the MLP parameters that was removed."""
        return 1 - self.mlp_params_after / self.mlp_params_before


def compress(
    model: Path,
    output: Path,
    ratio: float = 0.2,
    *,
    calibration: Optional[Path] = None,
    calibration_tokens: Optional[int] = None,
    heldout_tokens: Optional[int] = None,
    context: Optional[int] = None,
    tile: int = 0,
    uniform: bool = False,
    refit: bool = True,
    budget_ms: float = 0,
    budget_bytes: int = 0,
    attention: bool = False,
    slices: int = 1,
    target: Optional[str] = None,
    precision: Optional[str] = None,
    train_steps: int = 0,
    train_text: Optional[Path] = None,
    work_dir: Optional[Path] = None,
    resume: bool = False,
    threads: int = 0,
    isa: Optional[str] = None,
    progress: Optional[Progress] = None,
    **research: Any,
) -> Compression:
    """Replaces the MLP matrices of the checkpoint in `model` by thin factors and writes it to `output`.

    `ratio` is the fraction of MLP parameters to remove; `budget_ms` gives the time all MLPs may take for a token instead,
    `budget_bytes` the size of the whole checkpoint. With `attention` q, k, v and o take part; `slices` factorises parts of the
    intermediate width each by itself, for tensor parallelism.
    `progress(stage, done, total, unit)` hears how far it is; where it returns False the call ends with Interrupted. After
    that, or after Ctrl-C, `output` is as it was and a call with `resume=True` goes on. Options not named here are those
    of nmlp_compression_options for research: plain_svd, no_row_weights, residual_tokens, joint, no_shrink, cap, rounds.
    """
    options = lib.init(lib.CompressionOptions)
    options.ratio = 0.0 if budget_ms or budget_bytes else ratio
    options.attention, options.budget_bytes, options.slices = int(attention), budget_bytes, slices
    options.tile, options.uniform, options.refit, options.resume = tile, int(uniform), int(refit), int(resume)
    options.n_threads, options.train_steps, options.budget_ms = threads, train_steps, budget_ms
    fill(
        options,
        {"calibration_tokens": calibration_tokens, "heldout_tokens": heldout_tokens, "context": context},
        {"calibration": calibration, "target": target, "precision": precision, "train_text": train_text, "work_dir": work_dir, "isa": isa},
    )
    for name, value in research.items():
        if name not in ("plain_svd", "no_row_weights", "residual_tokens", "joint", "no_shrink", "cap", "rounds"):
            raise TypeError(f"compress() has no option {name!r}")
        setattr(options, name, value)
    result = convert("nmlp_compress_model", model, output, options, lib.CompressionResult, progress)
    return Compression(path=os.fspath(output), **values_of(result))
