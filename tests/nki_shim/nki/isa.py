"""nki.isa of the current dialect: every instruction names its destination first and checks its operands."""
import enum

import numpy as np

from nki.language import Tensor
from nki_shim_core import (DTYPE_BYTES, MATMUL, OTHER, Op, activate, check_access, check_capacity, check_matmul, check_scalar, combine, executed, machine, product, require,
                           rounded, transposing)


class engine(enum.Enum):
    tensor = 1
    vector = 2
    scalar = 3
    gpsimd = 4


Engine = engine  # instructions have a parameter of the same name


def _operand(tensor, what, spaces=("sbuf", "psum")):
    require(isinstance(tensor, Tensor), "operand", f"{what} is {type(tensor).__name__}, not a tensor")
    require(tensor.space in spaces, "operand_memory", f"{what} is in {tensor.space}, expected {' or '.join(spaces)}")
    if tensor.on_chip:
        check_access(tensor.space, tensor.start_partition, tensor.shape[0], tensor.elements, what)


def _same(dst, src, what):
    require(dst.shape[0] == src.shape[0], "element_count", f"{what}: {src.shape[0]} partitions into {dst.shape[0]}")
    require(dst.elements == src.elements, "element_count", f"{what}: {src.elements} elements per partition into {dst.elements}")


def _dma(dst, src, what):
    check_capacity()
    memories = ("hbm", "private_hbm", "shared_hbm", "sbuf")
    _operand(dst, f"{what} dst", memories)
    _operand(src, f"{what} src", memories)
    require(dst.dtype == src.dtype, "dma_dtype", f"{what} from {src.dtype} to {dst.dtype}")


def dma_copy(dst, src):
    executed()
    _dma(dst, src, "dma_copy")
    require(dst.data.size == src.data.size, "element_count", f"dma_copy of {src.data.size} elements into {dst.data.size}")
    _same(dst, src, "dma_copy")
    dst.write(src.read("dma_copy"), OTHER)


def dma_transpose(dst, src, axes):
    executed()
    _dma(dst, src, "dma_transpose")
    require(axes == (1, 0), "transpose_axes", f"{axes}")
    transposing[0] = True
    check_capacity()
    offset = dst.free_offset * DTYPE_BYTES[dst.dtype]
    require(offset % 32 == 0, "transpose_align", f"dma_transpose to byte {offset} of a partition, not a multiple of 32")
    require(len(dst.shape) == len(src.shape) == 2, "transpose_rank", f"{src.shape} into {dst.shape}")
    require(dst.shape == src.shape[::-1], "element_count", f"dma_transpose of {src.shape} into {dst.shape}")
    dst.write(src.read("dma_transpose").T, OTHER)


def nc_matmul(dst, stationary, moving, is_stationary_onezero=False, is_moving_onezero=False, is_transpose=False, accumulate=None):
    executed()
    check_capacity()
    _operand(stationary, "stationary", ("sbuf",))
    _operand(moving, "moving", ("sbuf",))
    _operand(dst, "matmul dst", ("psum",))
    mach = machine()
    check_matmul(stationary.shape[0], moving.shape[0], stationary.elements, moving.elements, (stationary.dtype, moving.dtype))
    require(stationary.start_partition == moving.start_partition, "matmul_contraction", "operands start at different partitions")
    require(dst.shape[0] == stationary.elements and dst.elements == moving.elements, "matmul_result",
            f"dst {dst.shape} for [{stationary.elements}, {moving.elements}]")
    require(dst.dtype == "float32" or (dst.dtype == "bfloat16" and mach.generation >= 4), "psum_dtype", f"matmul into {dst.dtype}")
    bank = mach.bank_bytes // 4
    require(mach.generation >= 4 or dst.free_offset // bank == dst.free_last // bank, "psum_bank",
            f"elements {dst.free_offset} to {dst.free_last} lie in more than one bank of {bank}")
    require(isinstance(accumulate, (bool, type(None))), "accumulate", f"{accumulate!r} is not True, False or None")
    a = stationary.read("stationary").reshape(stationary.shape[0], -1)
    b = moving.read("moving").reshape(moving.shape[0], -1)
    result = product(a, b)
    if accumulate:
        require(bool((dst.writer == MATMUL).all()), "accumulate_first",
                "accumulates onto elements that no matmul wrote (fresh, or written by another engine)")
        result = dst.read("matmul dst").reshape(result.shape) + result
    dst.write(rounded(result, dst.dtype), MATMUL)


def nc_transpose(dst, data, engine=engine.tensor):
    executed()
    check_capacity()
    tensor = engine is Engine.tensor
    limit = 128 if tensor else 32
    _operand(data, "transpose data", ("sbuf",) if tensor else ("sbuf", "psum"))
    _operand(dst, "transpose dst", ("psum",) if tensor else ("sbuf", "psum"))
    require(max(data.shape[0], data.elements) <= limit, "transpose_size", f"{data.shape} above {limit}")
    require(dst.shape[0] == data.elements and dst.elements == data.shape[0], "element_count", f"{data.shape} into {dst.shape}")
    if tensor:
        want = data.dtype if machine().generation >= 3 else "float32"
        require(dst.dtype == want, "psum_dtype", f"transpose of {data.dtype} into {dst.dtype}")
    dst.write(data.read("transpose data").reshape(data.shape[0], -1).T, OTHER)


def _check_engine(chosen, allowed, operands, what):
    require(isinstance(chosen, Engine), "engine", f"{what}: {chosen!r} is not an engine")
    require(chosen in allowed, "engine", f"{what} does not run on {chosen.name}")
    if chosen is Engine.gpsimd:
        require(all(t.space == "sbuf" for t in operands), "operand_memory", f"{what}: GpSimdE reaches SBUF only")


def tensor_copy(dst, src, engine=engine.vector):
    executed()
    check_capacity()
    _operand(src, "tensor_copy src")
    _operand(dst, "tensor_copy dst")
    allowed = [Engine.vector, Engine.gpsimd] + ([Engine.scalar] if machine().generation >= 3 else [])
    _check_engine(engine, allowed, (dst, src), "tensor_copy")
    _same(dst, src, "tensor_copy")
    dst.write(rounded(src.read("tensor_copy src").reshape(dst.shape), dst.dtype), OTHER)


def tensor_tensor(dst, data1, data2, op, engine=engine.vector):
    executed()
    check_capacity()
    for tensor, what in ((data1, "data1"), (data2, "data2"), (dst, "tensor_tensor dst")):
        _operand(tensor, what)
    _check_engine(engine, (Engine.vector, Engine.gpsimd), (dst, data1, data2), "tensor_tensor")
    require(not (data1.space == "psum" and data2.space == "psum"), "tensor_tensor_psum", "both inputs are in PSUM")
    _same(dst, data1, "tensor_tensor")
    _same(dst, data2, "tensor_tensor")
    require(isinstance(op, Op), "operator", f"{op!r} is not an operator")
    values = combine(op.name, data1.read("data1").reshape(dst.shape), data2.read("data2").reshape(dst.shape))
    dst.write(rounded(values, dst.dtype), OTHER)


def tensor_scalar(dst, data, op0, operand0, reverse0=False, op1=None, operand1=None, reverse1=False, engine=engine.vector):
    executed()
    check_capacity()
    _operand(data, "tensor_scalar data")
    _operand(dst, "tensor_scalar dst")
    _operand(operand0, "operand0", ("sbuf",))
    _check_engine(engine, (Engine.vector, Engine.scalar), (dst, data, operand0), "tensor_scalar")
    _same(dst, data, "tensor_scalar")
    check_scalar(operand0, data.shape[0], "operand0")
    require(op1 is None and not reverse0, "tensor_scalar", "one operator is what our kernels use")
    require(isinstance(op0, Op), "operator", f"{op0!r} is not an operator")
    factor = operand0.read("operand0").reshape((-1,) + (1,) * (len(data.shape) - 1))
    values = combine(op0.name, data.read("tensor_scalar data"), factor)
    dst.write(rounded(values.reshape(dst.shape), dst.dtype), OTHER)


def activation(dst, op, data, bias=None, scale=1.0):
    executed()
    check_capacity()
    _operand(data, "activation data")
    _operand(dst, "activation dst")
    _same(dst, data, "activation")
    require(isinstance(op, Op), "operator", f"{op!r} is not an operator")
    if isinstance(scale, Tensor):
        _operand(scale, "activation scale", ("sbuf",))
        check_scalar(scale, data.shape[0], "activation scale")
        factor = scale.read("activation scale").reshape((-1,) + (1,) * (len(data.shape) - 1))
    else:
        require(isinstance(scale, float), "scale", f"{scale!r} is not a float")
        factor = np.float32(scale)
    require(bias is None, "bias", "not used by our kernels")
    values = activate(op.name, factor * data.read("activation data"))
    dst.write(rounded(values.reshape(dst.shape), dst.dtype), OTHER)


def memset(dst, value):
    executed()
    check_capacity()
    _operand(dst, "memset dst")
    require(isinstance(value, (int, float)), "memset", f"{value!r} is not a number")
    dst.write(rounded(np.full(dst.shape, value, dtype=np.float32), dst.dtype), OTHER)
