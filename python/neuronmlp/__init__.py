"""neuronmlp: compress language models with SVD and run them.

    import neuronmlp

    with neuronmlp.Model("models/tiny") as model:
        for piece in model.stream("The old house", max_new=32):
            print(piece, end="", flush=True)

The package is a thin layer over libneuronmlp (``make install``): no compiled part, no dependency. The environment
variable NEURONMLP_LIBRARY names the library's file where it is not installed.
"""

from ._compression import Compression, compress
from ._errors import (
    Error,
    FormatError,
    IllegalError,
    Interrupted,
    LibraryError,
    LimitError,
    MissingError,
    NumericError,
    ShapeError,
    UnsupportedError,
)
from ._library import library_path, library_version
from ._model import Accuracy, Answer, Message, Model, ModelInfo, Perplexity, Stream, Token
from ._optimization import Optimization, optimize
from ._quantization import Quantization, quantize
from ._version import __version__

__all__ = [
    "Accuracy",
    "Answer",
    "Compression",
    "Error",
    "FormatError",
    "IllegalError",
    "Interrupted",
    "LibraryError",
    "LimitError",
    "Message",
    "MissingError",
    "Model",
    "ModelInfo",
    "NumericError",
    "Optimization",
    "Perplexity",
    "Quantization",
    "ShapeError",
    "Stream",
    "Token",
    "UnsupportedError",
    "__version__",
    "compress",
    "library_path",
    "library_version",
    "optimize",
    "quantize",
]
