"""neuronxcc.nki.isa: the instructions of the legacy dialect that we print; each returns a tile."""
import numpy as np

from neuronxcc.nki.language import Ref, Tile
from nki_shim_core import Op, activate, check_matmul, check_scalar, combine, executed, machine, product, require, rounded


def nc_matmul(stationary, moving):
    executed()
    for ref, what in ((stationary, "stationary"), (moving, "moving")):
        require(isinstance(ref, Ref), "operand", f"{what} is not a tile of a buffer")
    a, b = stationary.read("stationary", ("sbuf",)), moving.read("moving", ("sbuf",))
    a, b = a.reshape(a.shape[0], -1), b.reshape(b.shape[0], -1)
    check_matmul(a.shape[0], b.shape[0], a.shape[1], b.shape[1], (stationary.dtype, moving.dtype))
    require(stationary.start == moving.start, "matmul_contraction", "operands start at different partitions")
    require(b.shape[1] * 4 <= machine().bank_bytes, "psum_bank", f"{b.shape[1]} columns do not fit a bank")
    return Tile(product(a, b), "float32", "psum", matmul=True)


def nc_transpose(data):
    executed()
    values = data.read("transpose data", ("sbuf",))
    require(values.ndim == 2 and max(values.shape) <= 128, "transpose_size", f"{values.shape}")
    return Tile(np.ascontiguousarray(values.T), "float32", "psum")


def _scalar(operand, data, what):
    values = operand.read(what, ("sbuf",))
    rows = data.read(what + " beside")
    require(operand.dtype == "float32", "scalar_operand", f"{what} is {operand.dtype}")
    require(values.shape == (rows.shape[0], 1), "scalar_operand", f"{what} has shape {values.shape} for {rows.shape[0]} partitions")
    return values.reshape((-1,) + (1,) * (rows.ndim - 1))


def tensor_scalar(data, op0, operand0, dtype=None):
    executed()
    values = combine(op0 if isinstance(op0, str) else op0.name, data.read("tensor_scalar data"), _scalar(operand0, data, "operand0"))
    return Tile(rounded(values, dtype or data.dtype), dtype or data.dtype, "sbuf")


def activation(op, data, bias=None, scale=1.0, dtype=None):
    executed()
    require(isinstance(op, Op), "operator", f"{op!r} is not an operator")
    if isinstance(scale, Ref):
        factor = _scalar(scale, data, "activation scale")
    else:
        require(isinstance(scale, float) and bias is None, "scale", "scale is a float or a tile, bias is not used")
        factor = np.float32(scale)
    values = activate(op.name, factor * data.read("activation data"))
    return Tile(rounded(values, dtype or data.dtype), dtype or data.dtype, "sbuf")
