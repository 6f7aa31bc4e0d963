"""Long calls: they run in a thread of their own, so that Ctrl-C reaches Python and ends them at the next safe point."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from typing import Any, Callable, Dict, Optional, Union

from . import _library as lib

Path = Union[str, "os.PathLike[str]"]

Progress = Callable[[str, float, float, str], Optional[bool]]
"""Hears stage, done, total and unit; a result of False ends the call with Interrupted."""


class Cancel:
    """Asked by the library whether to end; set by Ctrl-C, a progress function, or whoever gave up waiting."""

    def __init__(self) -> None:
        self.asked = False
        self.error: Optional[BaseException] = None

    def guard(self, function: Callable[[], Any]) -> int:
        """Runs a callback of the user. An exception must not pass through C: it ends the call and is raised after it."""
        if not self.asked:
            try:
                if function() is False:
                    self.asked = True
            except BaseException as error:  # noqa: B902
                self.error = error
                self.asked = True
        return int(self.asked)

    def progress(self, report: Optional[Progress]) -> Any:
        def on_progress(_ctx: Any, stage: bytes, done: float, total: float, unit: bytes) -> int:
            return self.guard(lambda: report(stage.decode(), done, total, unit.decode()) if report else None)

        return lib.OnProgress(on_progress)


def _start(thread: threading.Thread) -> None:
    """Starts it with Ctrl-C held back: pressed meanwhile, it is raised when the thread runs."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run(work: Callable[[], Any], cancel: Cancel) -> Any:
    """Runs `work` in a thread and waits. After Ctrl-C it is asked to end, and KeyboardInterrupt is raised when it has."""
    outcome: dict = {}

    def body() -> None:
        try:
            outcome["value"] = work()
        except BaseException as error:  # noqa: B902
            outcome["error"] = error

    thread = threading.Thread(target=body, name="neuronmlp", daemon=True)
    interrupt: Optional[KeyboardInterrupt] = None
    begun = False
    while True:  # all of it in reach of the handler: a thread left alone would run into the interpreter's end
        try:
            if not begun:
                begun = True
                _start(thread)
            while thread.is_alive():
                thread.join(0.1)
            break
        except KeyboardInterrupt as pressed:
            cancel.asked = True
            interrupt = pressed
    if interrupt is not None:
        raise interrupt
    if cancel.error is not None:
        raise cancel.error
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


def fill(options: Any, counts: Dict[str, Optional[int]], texts: Dict[str, Any]) -> None:
    """Puts into the options what was given: None leaves a count at the library's own, and is no text."""
    for name, count in counts.items():
        if count is not None:
            setattr(options, name, count)
    for name, text in texts.items():
        setattr(options, name, lib.text_or_none(text))


def convert(function: str, model: Path, output: Path, options: Any, result_type: Any, progress: Optional[Progress]) -> Any:
    """Calls a function that makes one checkpoint of another, and returns its result."""
    cancel = Cancel()
    options.on_progress = cancel.progress(progress)
    result = lib.init(result_type)
    source, out = lib.text_or_none(model), lib.text_or_none(output)
    run(lambda: lib.call(function, source, out, ctypes.byref(options), ctypes.byref(result)), cancel)
    return result


def values_of(result: Any) -> Dict[str, Any]:
    """The fields of a result by name."""
    return {name: getattr(result, name) for name, _ in type(result)._fields_ if name != "struct_bytes"}
