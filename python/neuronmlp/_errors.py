"""Errors of the library as exceptions: one class for each code of neuronmlp/status.h."""

from __future__ import annotations

from typing import Dict, Type


class Error(RuntimeError):
    """A call failed. ``hint`` says what to do next and ``field`` which option is at fault, where there is one."""

    def __init__(self, message: str, hint: str = "", field: str = "", code: int = 0) -> None:
        super().__init__(message + (f" ({hint})" if hint else ""))
        self.message = message
        self.hint = hint
        self.field = field
        self.code = code


class LibraryError(Error, ImportError):
    """libneuronmlp was not found, or is of another version."""


class FormatError(Error):
    """A file is not what its format says."""


class UnsupportedError(Error):
    """Well formed, but outside what this library supports."""


class ShapeError(Error):
    """A tensor's shape or type is not the expected one."""


class MissingError(Error):
    """A required tensor, key or file is absent."""


class NumericError(Error):
    """NaN or Inf where finite values are required."""


class LimitError(Error):
    """A limit of the model or machine would be exceeded."""


class IllegalError(Error):
    """A tile program breaks a rule of its machine."""


class Interrupted(Error):
    """A progress function asked the call to end."""


class _ArgumentError(Error, ValueError):
    """A value that can never work: also a ValueError."""


class _MemoryError(Error, MemoryError):
    """Out of memory: also a MemoryError."""


class _FileError(Error, OSError):
    """The operating system refused a file operation: also an OSError."""


BY_CODE: Dict[int, Type[Error]] = {
    1: _ArgumentError,
    2: _MemoryError,
    100: _FileError,
    110: FormatError,
    120: UnsupportedError,
    130: ShapeError,
    140: MissingError,
    150: NumericError,
    160: LimitError,
    400: IllegalError,
    900: Interrupted,
}
