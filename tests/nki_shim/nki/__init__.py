"""nki of the current dialect: jit and simulate."""
import ast
import functools
import inspect
import textwrap

import numpy as np

from nki_shim_core import Storage, dtype_of_array, marked, require, transposing

_running = []


def _check_syntax(function):
    """What the compiler's front end refuses, found without running."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            require(not any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops), "syntax", "`is` is not supported in kernels")
        if isinstance(node, ast.FunctionDef):
            require(not node.args.kwonlyargs, "syntax", "keyword-only arguments are not supported in kernels")
        if isinstance(node, ast.keyword):
            require(node.arg != "mask", "syntax", "masks do not exist in this dialect")


def _argument(array):
    from nki.language import Tensor
    require(isinstance(array, np.ndarray) and array.ndim >= 2, "argument", "kernel arguments are arrays of two or more dimensions")
    return Tensor(Storage(array.shape, dtype_of_array(array), "hbm", "an argument", values=array, writable=False))


def _result(tensor):
    from nki.language import Tensor
    require(isinstance(tensor, Tensor), "output", "the kernel does not return a tensor")
    require(tensor.space == "shared_hbm", "output_memory", f"a returned tensor is in {tensor.space}, expected shared_hbm")
    require(bool(tensor.written.all()), "output_unwritten", "part of a returned tensor was never written")
    return marked(tensor.data, tensor.dtype)


def jit(function):
    _check_syntax(function)

    return Kernel(function, 1)


class Kernel:
    """A kernel and its grid: kernel[2](...) runs it on two physical cores, one after the other here, on the same shared HBM."""

    is_kernel = True

    def __init__(self, function, cores):
        self.function, self.cores = function, cores
        functools.update_wrapper(self, function)

    def __getitem__(self, cores):
        require(cores in (1, 2), "grid", f"{cores!r} physical cores per logical one; 1 or 2")
        return Kernel(self.function, cores)

    def __call__(self, *arrays):
        from nki import language
        require(not _running, "nesting", "a kernel calls a decorated kernel")
        _running.append(self.function)
        transposing[0] = False
        shared = []
        try:
            for core in range(self.cores):
                language.begin_core(core, self.cores, shared)
                result = self.function(*[_argument(a) for a in arrays])
        finally:
            _running.pop()
            language.begin_core(0, 1, [])
        return tuple(_result(t) for t in result) if isinstance(result, tuple) else _result(result)


def simulate(kernel):
    require(getattr(kernel, "is_kernel", False), "simulate", "takes a function decorated with nki.jit")
    return kernel
