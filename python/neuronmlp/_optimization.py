"""The fastest form of a checkpoint within a loss: nmlp_optimize_model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional

from . import _library as lib
from ._work import Path, Progress, convert, fill, values_of


@dataclass(frozen=True)
class Optimization:
    """What was chosen and why. Losses are rises of the log-perplexity, NaN where nothing was verified."""

    path: str
    verdict: str
    chosen: str
    simulated: bool
    ms_before: float
    ms_after: float
    bytes_before: int
    bytes_after: int
    loss: float
    loss_error: float
    verified_loss: float
    verified_loss_error: float
    stepped_back: int
    seconds: float

    @property
    def speedup(self) -> float:
        return self.ms_before / self.ms_after


def optimize(
    model: Path,
    output: Path,
    *,
    max_loss: float = 0.01,
    target: Optional[str] = None,
    workload: Optional[str] = None,
    minutes: float = 0,
    calibration: Optional[Path] = None,
    calibration_tokens: Optional[int] = None,
    heldout_tokens: Optional[int] = None,
    verify_tokens: Optional[int] = None,
    context: Optional[int] = None,
    tile: int = 0,
    resume: bool = False,
    work_dir: Optional[Path] = None,
    threads: int = 0,
    isa: Optional[str] = None,
    progress: Optional[Progress] = None,
) -> Optimization:
    """Writes the fastest form of `model` on `target` whose perplexity rises by at most the share `max_loss`.

    `target` is "cpu" (the default: this machine), "cuda", "trn1", "trn2", "trn3" or a machine file; `workload` "chat",
    "prompt" or "batch=N". Progress and Ctrl-C as of `compress`.
    """
    options = lib.init(lib.OptimizeOptions)
    options.max_loss, options.minutes, options.tile = max_loss, minutes, tile
    options.resume, options.n_threads = int(resume), threads
    fill(
        options,
        {"calibration_tokens": calibration_tokens, "heldout_tokens": heldout_tokens, "verify_tokens": verify_tokens, "context": context},
        {"target": target, "workload": workload, "calibration": calibration, "work_dir": work_dir, "isa": isa},
    )
    result = convert("nmlp_optimize_model", model, output, options, lib.OptimizeResult, progress)
    values = values_of(result)
    values.update(verdict=result.verdict.decode(), chosen=result.chosen.decode(), simulated=bool(result.simulated))
    return Optimization(path=os.fspath(output), **values)
