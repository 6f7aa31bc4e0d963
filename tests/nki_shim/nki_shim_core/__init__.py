"""What both dialects share: machines, dtypes, tensors with their memory, and the rules that apply to any access."""
import os
import weakref

import numpy as np


class Refused(Exception):
    """A documented rule is broken; the message starts with the rule's name."""


def require(condition, rule, detail):
    if not condition:
        raise Refused(f"{rule}: {detail}")


class Machine:
    """Limits of a NeuronCore generation."""

    def __init__(self, name):
        table = {"trn1": (2, 180224, 512), "trn2": (3, 212984, 512), "trn3": (4, 245752, 4096)}
        require(name in table, "target", f"unknown target {name}")
        self.name = name
        self.generation, self.sbuf_bytes, self.moving_max = table[name]
        self.partitions = 128
        self.stationary_max = 128
        self.psum_banks = 8
        self.bank_bytes = 2048
        self.sbuf_free_max = 65536
        self.psum_free_max = 4096


def machine():
    return Machine(os.environ.get("NKI_SHIM_TARGET", "trn2"))


DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3": 1}
# What a code of e4m3 with infinities (trn1, trn2) stands for, largest 240.
FP8 = np.array([m / 512 for m in range(8)] + [(8 + m) * 2.0 ** (e - 10) for e in range(1, 15) for m in range(8)], dtype=np.float32)


def rounded_fp8(values):
    """To the nearest code, half-way cases to the even one; beyond 240 there is nothing."""
    size = np.abs(values)
    require(not bool((size > 240).any()), "fp8_range", f"{size.max()} is above 240")
    above = np.minimum(np.searchsorted(FP8, size), len(FP8) - 1)
    below = np.maximum(above - 1, 0)
    low, high = size - FP8[below], FP8[above] - size
    index = np.where((low < high) | ((low == high) & (below % 2 == 0)), below, above)
    return np.copysign(FP8[index], values)


def rounded(values, dtype):
    """float32 values as the dtype holds them, round to nearest even."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if dtype == "float32":
        return values
    if dtype == "float8_e4m3":
        return rounded_fp8(values)
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32)
    even = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(values), values, even.view(np.float32)).astype(np.float32)


instructions = [0]  # executed since the last reset
transposing = [False]  # the kernel uses dma_transpose, which may take a PSUM bank for itself


def executed():
    """One instruction of an engine or a DMA."""
    instructions[0] += 1


# Who wrote an element of PSUM last.
FRESH, MATMUL, OTHER, ZEROED = 0, 1, 2, 3

_live = {"sbuf": 0, "psum": 0}


def _release(space, amount):
    _live[space] -= amount


def check_capacity():
    """All tensors that are still referenced must fit: called by every instruction."""
    m = machine()
    require(_live["sbuf"] <= m.sbuf_bytes, "sbuf_capacity", f"{_live['sbuf']} bytes per partition, {m.sbuf_bytes} usable")
    banks = m.psum_banks - (1 if transposing[0] else 0)
    require(_live["psum"] <= banks, "psum_capacity", f"{_live['psum']} banks, {banks} exist")


class Storage:
    """One allocation: values in float32, which elements were written, and by whom."""

    def __init__(self, shape, dtype, space, name="", values=None, writable=True):
        require(dtype in DTYPE_BYTES, "dtype", f"{dtype} is not supported")
        require(len(shape) >= 2, "rank", f"{space} tensor {name} has shape {shape}; at least two dimensions")
        require(all(type(n) is int and n > 0 for n in shape), "shape", f"{shape} is not made of positive whole numbers")
        self.shape, self.dtype, self.space, self.name, self.writable = shape, dtype, space, name, writable
        self.data = np.full(shape, np.nan, dtype=np.float32) if values is None else rounded(values, dtype)
        self.written = np.full(shape, values is not None)
        self.writer = np.full(shape, FRESH, dtype=np.uint8)

    def occupy(self, partitions, free_elements):
        """Counts the tensor against its memory while it lives."""
        m = machine()
        require(partitions <= m.partitions, "partition_count", f"{self.shape} has {partitions} partitions")
        amount = free_elements * DTYPE_BYTES[self.dtype]
        if self.space == "psum":
            amount = -(-amount // m.bank_bytes)
        _live[self.space] += amount
        weakref.finalize(self, _release, self.space, amount)


def start_partition_ok(start, count):
    step = 128 if count > 64 else 64 if count > 32 else 32
    return start % step == 0 and start < 128


def check_access(space, start, partitions, elements, what):
    """Rules for any on-chip operand of any engine."""
    m = machine()
    require(1 <= partitions <= m.partitions, "partition_count", f"{what} touches {partitions} partitions")
    require(start_partition_ok(start, partitions), "partition_start", f"{what}: {partitions} partitions from {start}")
    limit = m.psum_free_max if space == "psum" else m.sbuf_free_max
    require(elements <= limit, "free_size", f"{what} has {elements} elements per partition, at most {limit}")


def product(stationary, moving):
    """stationary[K, M].T @ moving[K, N]: fp32, one term of k after the other."""
    total = np.zeros((stationary.shape[1], moving.shape[1]), dtype=np.float32)
    term = np.empty_like(total)
    for k in range(stationary.shape[0]):
        np.multiply(stationary[k][:, None], moving[k][None, :], out=term)
        total += term
    return total


def check_scalar(tensor, partitions, what):
    """A vector of one number for each partition: [P, 1] in fp32."""
    require(tensor.dtype == "float32", "scalar_operand", f"{what} is {tensor.dtype}")
    require(tuple(tensor.shape) == (partitions, 1), "scalar_operand", f"{what} has shape {tuple(tensor.shape)} for {partitions} partitions")


def check_matmul(k_stationary, k_moving, m, n, dtypes):
    mach = machine()
    require(k_stationary == k_moving, "matmul_contraction", f"stationary has {k_stationary} partitions, moving {k_moving}")
    require(m <= mach.stationary_max, "matmul_stationary", f"{m} free elements, at most {mach.stationary_max}")
    require(n <= mach.moving_max, "matmul_moving", f"{n} free elements, at most {mach.moving_max}")
    require((dtypes[0] == "float32") == (dtypes[1] == "float32"), "matmul_dtype", f"{dtypes[0]} with {dtypes[1]}")


def activate(op, x):
    one = np.float32(1)
    with np.errstate(over="ignore"):
        if op == "copy":
            return x
        if op == "silu":
            return x / (one + np.exp(-x))
        if op == "sigmoid":
            return one / (one + np.exp(-x))
        if op == "relu":
            return np.maximum(x, np.float32(0))
        if op == "exp":
            return np.exp(x)
        if op == "rsqrt":
            return one / np.sqrt(x)
        if op == "gelu":
            from math import erf
            return (0.5 * x * (1.0 + np.vectorize(erf)(x / np.sqrt(2.0)))).astype(np.float32)
    raise Refused(f"activation: {op} is not an activation function")


def combine(op, a, b):
    table = {"add": np.add, "multiply": np.multiply, "subtract": np.subtract, "maximum": np.maximum}
    require(op in table, "operator", f"{op} is not an elementwise operator")
    return table[op](a, b, dtype=np.float32)


class Op:
    """An operator token of the language (nl.add, nl.silu, …)."""

    def __init__(self, name):
        self.name = name


def dtype_of_array(array):
    """bfloat16 is marked in the metadata of a float32 dtype (see ml_dtypes here)."""
    mark = (array.dtype.metadata or {}).get("nki")
    if mark:
        return mark
    require(array.dtype in (np.float32, np.float16), "dtype", f"argument is {array.dtype}")
    return str(array.dtype)


def marked(values, dtype):
    """A result for the caller: float32 that remembers its dtype."""
    return np.asarray(values, dtype=np.float32).astype(np.dtype(np.float32, metadata={"nki": dtype}))
