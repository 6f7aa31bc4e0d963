"""The MLPs of this package as PyTorch modules.

    package = Package(folder)
    whole_model.put_mlp(layer, NeuronMlp(package, layer_number))

On a NeuronCore a module calls the package's kernels; the number of rows chooses which. On any other device it computes
the same from the same packed weights with PyTorch's own products, in the dtype of its input. With tensor parallelism a
module holds one rank's part, and `reduce` adds the parts up.

Packages may have the norm before the MLP in their kernels (`norm_eps`; its weights are part of the packed ones, or in
fp8 packages a tensor beside them), and the residual after it (`adds_residual`): then a module takes what the norm would
take, and returns what the layer would.
"""
import functools
import importlib.util
import json
import os
import sys

import torch
from safetensors import safe_open

FORMAT, VERSION = "neuronmlp-trainium-package", 5
# fp8: no code is above 240, so that the e4m3 of PyTorch and that of the device mean the same
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}
NEURON_DEVICES = ("xla", "neuron", "privateuseone")


class Package:
    """A folder written by `neuronmlp emit --model`."""

    def __init__(self, folder):
        self.folder = os.path.abspath(folder)
        with open(os.path.join(self.folder, "manifest.json")) as file:
            self.manifest = json.load(file)
        found = (self.manifest.get("format"), self.manifest.get("version"))
        if found != (FORMAT, VERSION):
            raise ValueError(f"{self.folder}: manifest.json is {found}, these scripts read {(FORMAT, VERSION)}")
        self.dtype = DTYPES[self.manifest["dtype"]]
        self.hidden, self.tp, self.lnc = (self.manifest[key] for key in ("hidden", "tp", "lnc"))
        self.norm_eps, self.adds_residual = self.manifest["fused"]["norm_eps"], self.manifest["fused"]["residual"]
        self._kernels = {}

    def form(self, layer):
        return self.manifest["forms"][self.manifest["layers"][layer]]

    def tensors(self, layer, rank=0):
        """Packed weights of one layer by name."""
        path = os.path.join(self.folder, self.manifest["weights"][rank]["file"])
        with safe_open(path, framework="pt") as file:
            return {entry["tensor"]: file.get_tensor(f"layers.{layer}.{entry['tensor']}")
                    for entry in self.form(layer)["packing"]}

    def kernels(self, layer):
        """Entries of the manifest for this layer's form, by ascending rows."""
        form = self.manifest["layers"][layer]
        return sorted((k for k in self.manifest["kernels"] if k["form"] == form), key=lambda k: k["rows"])

    def function(self, entry):
        """The kernel of an entry, ready to be called with x and the packed weights."""
        if entry["id"] not in self._kernels:
            self.check_runtime()
            name = f"neuronmlp_kernel_{entry['id']}"
            spec = importlib.util.spec_from_file_location(name, os.path.join(self.folder, entry["file"]))
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            function = getattr(module, entry["id"])
            self._kernels[entry["id"]] = function[self.lnc] if self.lnc > 1 else function
        return self._kernels[entry["id"]]

    def check_runtime(self):
        """The runtime joins physical cores by this variable and refuses kernels for another number late and unclearly."""
        if self.manifest["dialect"] != "nki":
            return
        joined = os.environ.setdefault("NEURON_LOGICAL_NC_CONFIG", str(self.lnc))
        if joined != str(self.lnc):
            raise RuntimeError(f"NEURON_LOGICAL_NC_CONFIG is {joined}, the kernels are for {self.lnc} physical core(s) per "
                               f"logical one: set it to {self.lnc}, or write the package with --lnc {joined}")


@functools.lru_cache(maxsize=None)
def split_rows(count, buckets):
    """Rows of the kernels that take `count` rows in the least simulated time; `buckets` is ((rows, microseconds), ...)."""
    largest = buckets[-1][0]
    whole = max(0, count // largest - 1)
    rest = count - whole * largest
    best = [(0.0, ())]
    for n in range(1, rest + 1):
        best.append(min(((best[max(0, n - rows)][0] + us, (rows,) + best[max(0, n - rows)][1]) for rows, us in buckets),
                        key=lambda choice: choice[0]))
    return (largest,) * whole + tuple(sorted(best[rest][1], reverse=True))


def unpack(packed, entry, core=0):
    """The matrices [inputs, outputs] that one core reads of a packed tensor, by name.

    Parts of several cores stand side by side. Element (k, n) of a plane lies in row k mod tile_rows; tiles follow each other by chunk of k, column tile, plane, tile
    of the chunk.
    """
    if entry["cores"] > 1:
        packed = packed.chunk(entry["cores"], dim=1)[core]
    planes, columns = entry["planes"], entry["columns"]
    tiles = [min(entry["chunk_tiles"], -(-p["inputs"] // p["tile_rows"])) for p in planes]
    n_tiles = -(-planes[0]["outputs"] // columns)
    by_tile = packed.reshape(packed.shape[0], -1, n_tiles, sum(tiles), columns)
    matrices, first = {}, 0
    for plane, count in zip(planes, tiles):
        rows, inputs, outputs = min(plane["tile_rows"], plane["inputs"]), plane["inputs"], plane["outputs"]
        part = by_tile[:rows, :, :, first:first + count].permute(1, 3, 0, 2, 4)
        matrices[plane["matrix"]] = part.reshape(-1, n_tiles * columns)[:inputs, :outputs].contiguous()
        first += count
    return matrices


def unpack_scales(packed, entry, core=0):
    """Scales of the outputs [1, outputs] that one core reads, by matrix: output n in row n mod columns, tile by tile and plane by plane."""
    if entry["cores"] > 1:
        packed = packed.chunk(entry["cores"], dim=1)[core]
    planes = entry["planes"]
    if packed.shape[0] == 1 and packed.shape[1] == planes[0]["outputs"]:
        return {planes[0]["matrix"]: packed}
    by_tile = packed.reshape(packed.shape[0], -1, len(planes)).permute(2, 1, 0)
    return {plane["matrix"]: by_tile[i].reshape(1, -1)[:, :plane["outputs"]] for i, plane in enumerate(planes)}


def to_array(tensor):
    """A NumPy array for NKI, in the tensor's type."""
    import ml_dtypes
    kinds = {torch.bfloat16: "bfloat16", torch.float8_e4m3fn: "float8_e4m3"}
    if tensor.dtype not in kinds:
        return tensor.detach().cpu().numpy()
    return tensor.detach().cpu().float().numpy().astype(getattr(ml_dtypes, kinds[tensor.dtype]))


def all_reduce(y):
    """The sum over the ranks of torch.distributed's default group."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        raise RuntimeError("a package with tensor parallelism needs torch.distributed.init_process_group, or `reduce`")
    torch.distributed.all_reduce(y)
    return y


class NeuronMlp(torch.nn.Module):
    """down(silu(gate(x)) * up(x)) of one layer, with norm and residual where fused; x is [..., hidden], as is the result."""

    def __init__(self, package, layer, rank=0, reduce=all_reduce, load=True):
        super().__init__()
        self.package, self.layer, self.reduce = package, layer, reduce
        self.entries = package.form(layer)["packing"]
        self.buckets = tuple((k["rows"], k["simulated_us"]) for k in package.kernels(layer))
        self.simulate = None  # NKI's simulator in place of the device, for check_device.py
        tensors = package.tensors(layer, rank) if load else {}
        for entry in self.entries:
            tensor = tensors.get(entry["tensor"])
            if tensor is None:
                tensor = torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]])
            if list(tensor.shape) != entry["shape"]:
                raise ValueError(f"layer {layer}: {entry['tensor']} is {list(tensor.shape)}, the manifest says {entry['shape']}")
            self.register_parameter(entry["tensor"], torch.nn.Parameter(tensor, requires_grad=False))

    def forward(self, x):
        rows = x.reshape(-1, self.package.hidden)
        on_core = self.simulate is not None or rows.device.type in NEURON_DEVICES
        y = self.by_kernels(rows.to(self.package.dtype)) if on_core else self.by_products(rows)
        if self.package.tp > 1:
            y = self.reduce(y)
        return y.reshape(x.shape).to(x.dtype)

    def by_kernels(self, x):
        kernels = {k["rows"]: k for k in self.package.kernels(self.layer)}
        parts, first = [], 0
        for rows in split_rows(x.shape[0], self.buckets):
            part = x[first:first + rows]
            if part.shape[0] < rows:
                part = torch.nn.functional.pad(part, (0, 0, 0, rows - part.shape[0]))
            parts.append(self.call(kernels[rows], part))
            first += rows
        return torch.cat(parts)[:x.shape[0]]

    def call(self, entry, x):
        """One kernel on exactly its number of rows."""
        arguments = [x if name == "x" else getattr(self, name) for name in entry["arguments"]]
        function = self.package.function(entry)
        y = self.simulate(function, arguments) if self.simulate else function(*arguments)
        if self.package.lnc > 1:  # each physical core has its part of the sum
            y = y.reshape(self.package.lnc, *x.shape).float().sum(0).to(x.dtype)
        return y

    def matrices(self, dtype, core):
        found, scales = {}, {}
        for entry in self.entries:
            if entry.get("norm"):
                continue
            if entry.get("scales"):
                scales.update(unpack_scales(getattr(self, entry["tensor"]).detach(), entry, core))
            else:
                found.update(unpack(getattr(self, entry["tensor"]).detach().to(dtype), entry, core))
        return {name: matrix * scales[name].to(dtype) if name in scales else matrix for name, matrix in found.items()}

    def gain(self, dtype):
        """The norm's weights, where no matrix has them: weight k in row k mod rows, tile by tile."""
        for entry in self.entries:
            if entry.get("norm"):
                return getattr(self, entry["tensor"]).detach().t().reshape(-1)[:self.package.hidden].to(dtype)
        return 1

    def by_products(self, x):
        n = x
        if self.package.norm_eps is not None:
            wide = x if x.dtype == torch.float64 else x.float()
            root = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.package.norm_eps)
            n = (wide * root * self.gain(wide.dtype)).to(x.dtype)
        y = sum(self.core_products(n, core) for core in range(self.package.lnc))
        return x + y if self.package.adds_residual else y

    def core_products(self, x, core):
        m = self.matrices(x.dtype, core)

        def through(value, name):
            if f"w_{name}" in m:
                return value @ m[f"w_{name}"]
            first = m["u_shared"] if "u_shared" in m and name != "down" else m[f"u_{name}"]
            return value @ first @ m[f"v_{name}"]

        return through(torch.nn.functional.silu(through(x, "gate")) * through(x, "up"), "down")
