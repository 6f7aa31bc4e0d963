"""neuronxcc.nki.language: loops, index grids, masks, buffers, loads and stores, tile arithmetic."""
import os

import numpy as np

from nki_shim_core import (MATMUL, OTHER, ZEROED, Op, Storage, check_access, check_capacity, combine, executed, require, rounded)

float32, bfloat16, float16, float8_e4m3 = "float32", "bfloat16", "float16", "float8_e4m3"


class _Memory:
    def __init__(self, name):
        self.name = name


sbuf, psum = _Memory("sbuf"), _Memory("psum")
hbm, private_hbm, shared_hbm = _Memory("hbm"), _Memory("private_hbm"), _Memory("shared_hbm")
silu, gelu, sigmoid, relu, exp, rsqrt = Op("silu"), Op("gelu"), Op("sigmoid"), Op("relu"), Op("exp"), Op("rsqrt")


class Symbol:
    """A loop variable as the compiler sees it: arithmetic and masks only, no decisions."""

    def __init__(self, value):
        self.value = value

    def _make(self, other, operate):
        if isinstance(other, Grid):
            return NotImplemented
        return Symbol(operate(self.value, number(other)))

    def __add__(self, other):
        return self._make(other, lambda a, b: a + b)

    def __sub__(self, other):
        return self._make(other, lambda a, b: a - b)

    def __mul__(self, other):
        require(not isinstance(other, Symbol), "affine", "a product of two loop variables")
        return self._make(other, lambda a, b: a * b)

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other):
        return Mask(np.array(self.value < number(other)))

    def __gt__(self, other):
        return Mask(np.array(self.value > number(other)))

    def __bool__(self):
        require(False, "loop_variable", "a decision on a loop variable that is not of static_range")

    def __index__(self):
        require(False, "loop_variable", "a loop variable used as a Python integer")

    __eq__ = __ne__ = lambda self, other: require(False, "loop_variable", "a comparison of a loop variable")
    __hash__ = None


def number(x):
    if isinstance(x, Symbol):
        return x.value
    require(type(x) is int, "index", f"{x!r} is not an integer")
    return x


def _trips(n):
    require(type(n) is int and n > 0, "trip_count", f"{n!r} is not a constant")
    return range(n)


def affine_range(n):
    trips = _trips(n)
    for i in reversed(trips) if os.environ.get("NKI_SHIM_REVERSE") == "1" else trips:
        yield Symbol(i)


def sequential_range(n):
    for i in _trips(n):
        yield Symbol(i)


def static_range(n):
    yield from _trips(n)


class Mask:
    def __init__(self, keep):
        self.keep = keep

    def __and__(self, other):
        return Mask(self.keep & other.keep)

    def __bool__(self):
        require(False, "mask", "a mask is not a truth value")


class Grid:
    """Indices along one dimension of a tile, or a sum of such."""

    def __init__(self, values):
        self.values = values

    def __add__(self, other):
        return Grid(self.values + (other.values if isinstance(other, Grid) else number(other)))

    def __mul__(self, other):
        return Grid(self.values * number(other))

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other):
        return Mask(self.values < number(other))

    def __bool__(self):
        require(False, "mask", "an index grid is not a truth value")


class arange:
    def __init__(self, n):
        require(type(n) is int and n > 0, "arange", f"{n!r} is not a constant")
        self.n = n

    def __getitem__(self, items):
        require(isinstance(items, tuple) and len(items) >= 2, "arange", "1-D index grids are not allowed")
        require(sum(isinstance(i, slice) for i in items) == 1 and all(i is None or i == slice(None) for i in items), "arange", f"{items}")
        return Grid(np.arange(self.n)[items])


class par_dim:
    def __init__(self, n):
        self.n = n


class Tile:
    """A value on its way from one instruction to an assignment. `keep`: elements a mask let through."""

    def __init__(self, data, dtype, space, keep=None, matmul=False):
        self.data, self.dtype, self.space, self.matmul = data, dtype, space, matmul
        self.keep = np.ones(data.shape, dtype=bool) if keep is None else keep

    shape = property(lambda self: self.data.shape)


class Sum:
    """What `ref += tile` leaves for the assignment that follows it."""

    def __init__(self, ref, tile):
        self.ref, self.tile = ref, tile


class Ref:
    """A tile inside a tensor: index arrays per dimension, broadcast to the tile's shape."""

    def __init__(self, tensor, index, start, views):
        self.tensor, self.index, self.start, self.views = tensor, index, start, views
        self.shape = np.broadcast_shapes(*[np.shape(i) for i in index]) if views is None else views[0].shape

    dtype = property(lambda self: self.tensor.storage.dtype)
    space = property(lambda self: self.tensor.storage.space)
    on_chip = property(lambda self: self.space in ("sbuf", "psum"))

    def arrays(self):
        s = self.tensor.storage
        if self.views is not None:
            return self.views
        return tuple(a[self.index] for a in (s.data, s.written, s.writer))

    def check(self, what, spaces=("sbuf", "psum")):
        require(self.space in spaces, "operand_memory", f"{what} is in {self.space}, expected {' or '.join(spaces)}")
        if self.on_chip:
            check_access(self.space, self.start, self.shape[0], int(np.prod(self.shape[1:])), what)

    def read(self, what, spaces=("sbuf", "psum")):
        check_capacity()
        self.check(what, spaces)
        data, written, _ = self.arrays()
        require(bool(written.all()), "uninitialised", f"{what} reads elements of {self.tensor.storage.name} nobody wrote")
        return data

    def write(self, values, keep, writer):
        s = self.tensor.storage
        require(s.writable, "read_only", "inputs are not written")
        if self.views is not None:
            data, written, writers = self.views
            np.copyto(data, values, where=keep)
            written |= keep
            np.copyto(writers, np.uint8(writer), where=keep)
            return
        where = tuple(np.broadcast_to(i, self.shape)[keep] for i in self.index)
        s.data[where], s.written[where], s.writer[where] = values[keep], True, writer

    def __iadd__(self, tile):
        return Sum(self, tile)


class Tensor:
    def __init__(self, storage, par=0):
        self.storage, self.par = storage, par

    shape = property(lambda self: self.storage.shape)
    dtype = property(lambda self: self.storage.dtype)
    space = property(lambda self: self.storage.space)

    def _range(self, item, extent):
        start, stop = number(item.start if item.start is not None else 0), number(item.stop if item.stop is not None else extent)
        require(item.step is None and 0 <= start < stop <= extent, "index_range", f"{start}:{stop} of {extent} in {self.storage.name} {self.shape}")
        return slice(start, stop)

    def __getitem__(self, items):
        items = items if isinstance(items, tuple) else (items,)
        require(len(items) == len(self.shape), "indexing", f"{len(items)} indices for {len(self.shape)} dimensions")
        on_chip = self.space in ("sbuf", "psum")
        if on_chip:
            require(all(isinstance(i, (int, Symbol)) for i in items[:self.par]), "block_dim", "block dimensions take one index")
            require(isinstance(items[self.par], (slice, Grid)), "partition_dim", "the partition dimension is the first of a tile")
        if any(isinstance(i, Grid) for i in items):
            return self._gather(items)
        index = tuple(self._range(i, n) if isinstance(i, slice) else self._one(i, n) for i, n in zip(items, self.shape))
        s = self.storage
        start = index[self.par].start if on_chip else 0
        return Ref(self, index, start, (s.data[index], s.written[index], s.writer[index]))

    def _one(self, item, extent):
        require(0 <= number(item) < extent, "index_range", f"{number(item)} of {extent} in {self.storage.name} {self.shape}")
        return number(item)

    def _gather(self, items):
        require(not any(isinstance(i, slice) for i in items), "indexing", "grids and slices in one index")
        index = tuple(i.values if isinstance(i, Grid) else np.array(number(i)) for i in items)
        start = int(index[self.par].min()) if self.space in ("sbuf", "psum") else 0
        if self.space in ("sbuf", "psum"):
            for i, n in zip(index, self.shape):
                require(0 <= i.min() and i.max() < n, "index_range", f"{i.min()} to {i.max()} of {n} in {self.storage.name}")
        return Ref(self, index, start, None)

    def __setitem__(self, items, value):
        ref = self[items]
        check_capacity()
        ref.check("assignment")
        adds = isinstance(value, Sum)
        tile = value.tile if adds else value
        if isinstance(tile, Ref):
            tile = Tile(tile.read("operand of +="), tile.dtype, tile.space)
        if adds and not tile.matmul:
            executed()  # a tensor_tensor; the matmul itself counts elsewhere
        if isinstance(tile, Tensor):  # nl.zeros and nl.full as a fill
            tile = Tile(tile.storage.data.reshape(ref.shape), tile.dtype, "fill")
        require(isinstance(tile, Tile), "assignment", f"{type(tile).__name__} is not a tile")
        require(tile.shape == ref.shape, "element_count", f"{tile.shape} into {ref.shape}")
        values, writer = tile.data, MATMUL if tile.matmul else OTHER
        if tile.matmul:
            require(self.space == "psum", "operand_memory", f"a matmul writes to {self.space}")
            require(self.dtype == "float32", "psum_dtype", f"a matmul into {self.dtype}")
        if adds:
            data, written, writers = ref.arrays()
            require(bool(written.all()), "uninitialised", f"+= reads elements of {self.storage.name} nobody wrote")
            if tile.matmul:
                require(bool(np.isin(writers, (MATMUL, ZEROED)).all()), "accumulate_first", "+= onto PSUM that no nl.zeros or matmul wrote")
            require(not (self.space == "psum" and not tile.matmul), "psum_sum", "only matmuls add into PSUM")
            values = np.add(data, values, dtype=np.float32)
        ref.write(rounded(values, self.dtype), tile.keep, writer)


def _allocate(shape, dtype, buffer):
    require(isinstance(shape, tuple), "shape", f"{shape!r} is not a tuple")
    pars = [i for i, n in enumerate(shape) if isinstance(n, par_dim)]
    on_chip = buffer in (sbuf, psum)
    require(len(pars) == (1 if on_chip else 0), "par_dim", f"{len(pars)} partition dimensions in {buffer.name}")
    require(pars in ([], [0]), "block_dim", "block dimensions before the partitions are an error from SDK 2.25 on")
    plain = tuple(n.n if isinstance(n, par_dim) else n for n in shape)
    storage = Storage(plain, dtype, buffer.name, buffer.name)
    if on_chip:
        storage.occupy(plain[pars[0]], int(np.prod(plain)) // plain[pars[0]])
    return Tensor(storage, pars[0] if pars else 0)


def ndarray(shape, dtype, buffer=sbuf):
    return _allocate(shape, dtype, buffer)


def full(shape, fill_value, dtype, buffer=sbuf):
    require(buffer in (sbuf, psum), "initial_value", "HBM tensors have no initial value")
    if buffer is sbuf:
        executed()  # VectorE fills it; in PSUM zeros begin an accumulation group
    tensor = _allocate(shape, dtype, buffer)
    tensor.storage.data[...] = rounded(np.float32(fill_value), dtype)
    tensor.storage.written[...] = True
    tensor.storage.writer[...] = ZEROED if fill_value == 0 else OTHER
    return tensor


def zeros(shape, dtype, buffer=sbuf):
    return full(shape, 0.0, dtype, buffer)


def _masked(ref, mask, what):
    """HBM elements of a reference and which of them a mask lets through."""
    require(ref.space in ("hbm", "private_hbm", "shared_hbm"), "operand_memory", f"{what} of {ref.space}")
    keep = np.ones(ref.shape, dtype=bool) if mask is None else np.broadcast_to(mask.keep, ref.shape)
    shape = ref.tensor.shape
    if ref.views is not None:
        return keep, None
    inside = np.ones(ref.shape, dtype=bool)
    for i, n in zip(ref.index, shape):
        inside = inside & (i >= 0) & (i < n)
    require(bool((inside | ~keep).all()), "index_range", f"{what} outside {shape} without a mask")
    return keep, tuple(np.clip(np.broadcast_to(i, ref.shape), 0, n - 1) for i, n in zip(ref.index, shape))


def load(src, mask=None, dtype=None):
    check_capacity()
    executed()
    require(isinstance(src, Ref) and dtype is None, "operand", "nl.load of an index without a cast")
    keep, index = _masked(src, mask, "load")
    s = src.tensor.storage
    data, written = (src.views[0], src.views[1]) if index is None else (s.data[index], s.written[index])
    require(bool((written | ~keep).all()), "uninitialised", "load of HBM nobody wrote")
    require(src.shape[0] <= 128, "partition_count", f"load of {src.shape[0]} rows")
    return Tile(np.where(keep, data, np.float32(np.nan)), src.dtype, "sbuf", keep)


def load_transpose2d(src, mask=None):
    check_capacity()
    executed()
    keep, index = _masked(src, mask, "load_transpose2d")
    s = src.tensor.storage
    data, written = (src.views[0], src.views[1]) if index is None else (s.data[index], s.written[index])
    require(data.ndim == 2, "transpose_rank", f"{data.shape}")
    require(bool((written | ~keep).all()), "uninitialised", "load of HBM nobody wrote")
    require(data.shape[1] <= 128, "partition_count", f"transposed load of {data.shape[1]} columns")
    return Tile(np.where(keep, data, np.float32(np.nan)).T, src.dtype, "sbuf", keep.T)


def store(dst, value, mask=None):
    check_capacity()
    executed()
    require(dst.tensor.storage.writable, "read_only", "inputs are not written")
    keep, index = _masked(dst, mask, "store")
    data = value.read("store", ("sbuf",))
    require(value.dtype == dst.dtype, "dma_dtype", f"store of {value.dtype} into {dst.dtype}")
    require(data.shape == dst.shape, "element_count", f"store of {data.shape} into {dst.shape}")
    s = dst.tensor.storage
    if index is None:
        dst.views[0][...], dst.views[1][...] = data, True
        return
    where = tuple(i[keep] for i in index)
    s.data[where], s.written[where] = data[keep], True


class _Copy(Op):
    """nl.copy is a function and, as nisa.activation's op, a token."""

    def __call__(self, src, dtype=None):
        executed()
        return Tile(rounded(src.read("copy"), dtype or src.dtype), dtype or src.dtype, "sbuf")


class _Binary(Op):
    def __call__(self, a, b, dtype=None):
        executed()
        require(not (a.space == "psum" and b.space == "psum"), "tensor_tensor_psum", "both inputs are in PSUM")
        require(a.shape == b.shape, "element_count", f"{a.shape} with {b.shape}")
        return Tile(rounded(combine(self.name, a.read(self.name), b.read(self.name)), dtype or a.dtype), dtype or a.dtype, "sbuf")


copy = _Copy("copy")
add, multiply, subtract, maximum = _Binary("add"), _Binary("multiply"), _Binary("subtract"), _Binary("maximum")
