"""neuronxcc.nki, the legacy dialect: jit and simulate_kernel."""
import functools

import numpy as np

from nki_shim_core import Storage, dtype_of_array, marked, require


def _argument(array):
    from neuronxcc.nki.language import Tensor
    require(isinstance(array, np.ndarray) and array.ndim >= 2, "argument", "kernel arguments are arrays of two or more dimensions")
    return Tensor(Storage(array.shape, dtype_of_array(array), "hbm", "an argument", values=array, writable=False))


def _result(tensor):
    from neuronxcc.nki.language import Tensor
    require(isinstance(tensor, Tensor), "output", "the kernel does not return a tensor")
    storage = tensor.storage
    require(storage.space == "shared_hbm", "output_memory", f"a returned tensor is in {storage.space}, expected shared_hbm")
    require(bool(storage.written.all()), "output_unwritten", "part of a returned tensor was never written")
    return marked(storage.data, storage.dtype)


def jit(function):
    @functools.wraps(function)
    def kernel(*arrays):
        result = function(*[_argument(a) for a in arrays])
        return tuple(_result(t) for t in result) if isinstance(result, tuple) else _result(result)

    kernel.is_kernel = True
    return kernel


def simulate_kernel(kernel, *arrays):
    require(getattr(kernel, "is_kernel", False), "simulate", "takes a function decorated with nki.jit")
    return kernel(*arrays)
