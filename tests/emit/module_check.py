"""The PyTorch module finds the right tensors of a checkpoint, lays them out and pads rows: run with stand-ins for torch.

usage: module_check.py NEURONMLP
A checkpoint of random factors W = u v is written as a dictionary; the module must compute the model's MLP.
"""
import importlib
import os
import subprocess
import sys
import tempfile
import types

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "nki_shim"))
from nki_shim_core import marked, rounded  # noqa: E402

CHECKPOINT = {}


class Tensor:
    """The few methods of torch.Tensor that the module calls, on NumPy."""

    def __init__(self, data):
        self.data = np.asarray(data, dtype=np.float32)

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: np.float32)

    def to(self, where):
        return Tensor(rounded(self.data, "bfloat16")) if where == "bfloat16" else self

    def t(self):
        return Tensor(self.data.T)

    def contiguous(self):
        return self

    def permute(self, *axes):
        return Tensor(self.data.transpose(axes))

    def reshape(self, *shape):
        return Tensor(self.data.reshape(shape))

    def __getitem__(self, index):
        return Tensor(self.data[index])

    def __setitem__(self, index, value):
        self.data[index] = value.data


def fake_torch():
    torch = types.ModuleType("torch")
    torch.bfloat16 = "bfloat16"
    torch.zeros = lambda shape, dtype: Tensor(np.zeros(shape))
    torch.cat = lambda parts, dim=0: Tensor(np.concatenate([p.data for p in parts], axis=dim))

    class Module:
        def __call__(self, x):
            return self.forward(x)

    def pad(x, widths):
        assert widths[:3] == (0, 0, 0)
        return Tensor(np.pad(x.data, ((0, widths[3]), (0, 0))))

    torch.nn = types.SimpleNamespace(Module=Module, functional=types.SimpleNamespace(pad=pad))
    return torch


def fake_safetensors():
    class Shard:
        def __init__(self, path, framework):
            assert framework == "pt" and path.endswith("model.safetensors")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def get_tensor(self, name):
            return Tensor(CHECKPOINT[name])

    module = types.ModuleType("safetensors")
    module.safe_open = Shard
    return module


def random(rng, *shape):
    return rounded(rng.standard_normal(shape) / np.sqrt(shape[-1]), "bfloat16")


def fill(prefix, h, r, i, shared):
    """Factors as the checkpoint stores them: W [outputs, inputs] = u [outputs, r] v [r, inputs]."""
    rng = np.random.default_rng(3)
    dense = {}
    basis = random(rng, r, h)
    for name, (rows, cols) in {"gate_proj": (i, h), "up_proj": (i, h), "down_proj": (h, i)}.items():
        u, v = random(rng, rows, r), random(rng, r, cols)
        CHECKPOINT[f"{prefix}.{name}.u"] = u
        if shared and name != "down_proj":
            v = basis
        else:
            CHECKPOINT[f"{prefix}.{name}.v"] = v
        dense[name] = u.astype(np.float64) @ v.astype(np.float64)
    if shared:
        CHECKPOINT[f"{prefix}.gate_up_proj.v"] = basis
    return dense


def emit(command, folder, name, *words):
    path = os.path.join(folder, name)
    subprocess.run([command, "emit", "--target", "trn2", *words, "-o", path], check=True, stdout=subprocess.DEVNULL)
    return path


def run(command, folder, shape, shared, lead):
    s, h, r, i = shape
    CHECKPOINT.clear()
    dense = fill("model.layers.0.mlp", h, r, i, shared)
    words = ["--kernel", "mlp", "--shape", ",".join(map(str, shape))] + (["--tiling", "shared=1"] if shared else [])
    emit(command, folder, "mlp_kernel.py", *words)
    emit(command, folder, "mlp_module.py", *words, "--module")
    for name in ("mlp_kernel", "mlp_module"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    kernel_file = importlib.import_module("mlp_kernel")
    real = kernel_file.mlp  # the module hands over torch tensors
    kernel_file.mlp = lambda *tensors: Tensor(real(*[marked(t.data, "bfloat16") for t in tensors]))
    module = importlib.import_module("mlp_module").NeuronMlp("folder", "model.layers.0.mlp", "device")
    x = rounded(np.random.default_rng(4).standard_normal((*lead, h)), "bfloat16")
    got = module(Tensor(x)).data
    gate, up = x.astype(np.float64) @ dense["gate_proj"].T, x.astype(np.float64) @ dense["up_proj"].T
    want = (gate / (1 + np.exp(-gate)) * up) @ dense["down_proj"].T
    error = np.abs(got - want).max() / np.abs(want).max()
    assert got.shape == want.shape and error < 2e-2, f"{shape}: shape {got.shape}, error {error:.2e}"


def main():
    command = os.path.abspath(sys.argv[1])
    os.environ["NKI_SHIM_TARGET"] = "trn2"
    sys.modules["torch"], sys.modules["safetensors"] = fake_torch(), fake_safetensors()
    sys.dont_write_bytecode = True  # the next kernel has the same file name
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        run(command, folder, (16, 200, 140, 300), False, (2, 3))   # fewer rows than the kernel's
        run(command, folder, (16, 200, 140, 300), False, (37,))    # more, not a multiple
        run(command, folder, (1, 256, 128, 384), True, (1, 1))     # decode, shared basis
    print("module: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
