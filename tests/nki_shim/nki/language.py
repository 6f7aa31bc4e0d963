"""nki.language of the current dialect: memories, dtypes, operators, ndarray."""
import numpy as np

from nki_shim_core import Op, Storage, require

float32, bfloat16, float16, float8_e4m3 = "float32", "bfloat16", "float16", "float8_e4m3"


class _Memory:
    def __init__(self, name):
        self.name = name


sbuf, psum = _Memory("sbuf"), _Memory("psum")
hbm, private_hbm, shared_hbm = _Memory("hbm"), _Memory("private_hbm"), _Memory("shared_hbm")

add, multiply, subtract, maximum = Op("add"), Op("multiply"), Op("subtract"), Op("maximum")
copy, silu, gelu, sigmoid, relu, exp, rsqrt = Op("copy"), Op("silu"), Op("gelu"), Op("sigmoid"), Op("relu"), Op("exp"), Op("rsqrt")


class Tensor:
    """A tensor or a slice of one. Slices are views with constant bounds inside the tensor."""

    def __init__(self, storage, data=None, written=None, writer=None):
        self.storage = storage
        self.data = storage.data if data is None else data
        self.written = storage.written if written is None else written
        self.writer = storage.writer if writer is None else writer

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.storage.dtype)
    space = property(lambda self: self.storage.space)
    on_chip = property(lambda self: self.space in ("sbuf", "psum"))

    def _bounds(self, item, extent):
        if isinstance(item, (int, np.integer)) and not isinstance(item, bool):
            require(0 <= item < extent, "index_range", f"index {item} of {extent} in {self.storage.name or self.space}")
            return int(item)
        require(isinstance(item, slice) and item.step is None, "indexing", f"{item!r}: constant slices and integers only")
        start, stop = item.start or 0, extent if item.stop is None else item.stop
        require(all(isinstance(n, (int, np.integer)) for n in (start, stop)), "indexing", f"{item!r} has bounds that are not integers")
        require(0 <= start < stop <= extent, "index_range", f"{start}:{stop} of {extent} in {self.storage.name or self.space} {self.storage.shape}")
        return slice(int(start), int(stop))

    def __getitem__(self, items):
        items = items if isinstance(items, tuple) else (items,)
        require(len(items) <= len(self.shape), "indexing", f"{len(items)} indices for {len(self.shape)} dimensions")
        bounds = [self._bounds(item, extent) for item, extent in zip(items, self.shape)]
        if isinstance(bounds[0], int):  # an integer on the partition dimension keeps it
            bounds[0] = slice(bounds[0], bounds[0] + 1)
        index = tuple(bounds)
        part = Tensor(self.storage, self.data[index], self.written[index], self.writer[index])
        require(len(part.shape) >= 2, "rank", f"a slice of shape {part.shape}; at least two dimensions")
        return part

    def __setitem__(self, items, value):
        require(False, "assignment", "tensors are written by instructions, not by assignment")

    def __bool__(self):
        require(False, "tensor_operator", "a tensor is not a truth value")

    def _operator(self, *_):
        require(False, "tensor_operator", "operators on tensors do not exist in this dialect")

    __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __iadd__ = __imul__ = _operator

    def ap(self, pattern, offset=0):
        """An access pattern [[stride, count], …] over the storage, row-major."""
        flat = int(np.prod(self.storage.shape))
        require(not self.on_chip, "access_pattern", "used for HBM here")
        last = offset + sum((count - 1) * stride for stride, count in pattern)
        require(all(count > 0 for _, count in pattern), "access_pattern", f"{pattern} has an empty dimension")
        require(0 <= offset and last < flat, "index_range", f"pattern ends at {last} of {flat}")
        index = np.full((), offset)
        for stride, count in pattern:
            index = index[..., None] + np.arange(count) * stride
        return Gather(self.storage, index)

    @property
    def start_partition(self):
        base = self.storage.data
        offset = self.data.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return offset // base.strides[0]

    @property
    def free_offset(self):
        """First element within the partition."""
        base = self.storage.data
        offset = self.data.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return offset % base.strides[0] // 4

    @property
    def free_last(self):
        """Last element within the partition."""
        return self.free_offset + sum((n - 1) * s for n, s in zip(self.data.shape[1:], self.data.strides[1:])) // 4

    @property
    def elements(self):
        return int(np.prod(self.shape[1:]))

    def read(self, what):
        require(bool(self.written.all()), "uninitialised", f"{what} reads elements of {self.storage.name or self.space} nobody wrote")
        return self.data

    def write(self, values, writer):
        require(self.storage.writable, "read_only", "inputs are not written")
        self.data[...] = np.asarray(values, dtype=np.float32).reshape(self.shape)
        self.written[...] = True
        self.writer[...] = writer


class Gather(Tensor):
    """The elements of HBM an access pattern names."""

    def __init__(self, storage, index):
        self.index = index
        super().__init__(storage, storage.data.reshape(-1)[index], storage.written.reshape(-1)[index], storage.writer.reshape(-1)[index])

    def write(self, values, writer):
        require(self.storage.writable, "read_only", "inputs are not written")
        self.storage.data.reshape(-1)[self.index] = np.asarray(values, dtype=np.float32).reshape(self.index.shape)
        self.storage.written.reshape(-1)[self.index] = True


def ndarray(shape, dtype, buffer, name="", address=None):
    require(isinstance(shape, tuple), "shape", f"{shape!r} is not a tuple")
    require(isinstance(buffer, _Memory), "memory", f"{buffer!r} is not a memory")
    if buffer is shared_hbm and _grid["core"] > 0:  # the cores of one kernel share it: the first declared it
        storage = _grid["shared"][_grid["declared"]]
        _grid["declared"] += 1
        require(storage.shape == shape, "shared_hbm", f"{shape} on this core, {storage.shape} on the first")
        return Tensor(storage)
    storage = Storage(shape, dtype, buffer.name, name)
    if buffer is shared_hbm:
        _grid["shared"].append(storage)
    if buffer in (sbuf, psum):
        storage.occupy(shape[0], int(np.prod(shape[1:])))
    return Tensor(storage)


_grid = {"core": 0, "cores": 1, "shared": [], "declared": 0}


def begin_core(core, cores, shared):
    """Of the stand-in, not of NKI: instructions that follow run on this core."""
    _grid.update(core=core, cores=cores, shared=shared, declared=0)


def program_id(axis):
    require(axis == 0, "grid", f"axis {axis} of a grid with one")
    return _grid["core"]


def num_programs(axis):
    require(axis == 0, "grid", f"axis {axis} of a grid with one")
    return _grid["cores"]


class tile_size:
    pmax = 128
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    psum_fmax = 512


