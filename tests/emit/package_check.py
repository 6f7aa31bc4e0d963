"""Checks a package written by `neuronmlp emit --model` without asking the program that wrote it.

usage: package_check.py PACKAGE CHECKPOINT [PROGRAM]

  - every packed tensor equals, byte for byte, a packing computed here element by element from the manifest's description;
  - the packed file holds these tensors and nothing else, and is at most 1 % larger than the matrices in it;
  - every kernel, run unmodified in the NumPy stand-in for NKI on the packed weights of a layer of its form, gives the MLP of
    the checkpoint in float64 within 2e-2 of the largest value (4 eps sqrt(B), see run_cases.py); with tensor parallelism the
    sum over the ranks does;
  - all other weights of the checkpoint are there unchanged;
  - with PROGRAM, each kernel's values in `PROGRAM simulate --check` agree with float64.
"""
import importlib.util
import json
import os
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "nki_shim"))


def read_safetensors(path):
    """Raw arrays by name; bf16 as uint16, e4m3 as uint8."""
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        kind = {"BF16": np.uint16, "F32": np.float32, "F16": np.float16, "F8_E4M3": np.uint8}[entry["dtype"]]
        tensors[name] = np.frombuffer(data[8 + size + begin:8 + size + end], dtype=kind).reshape(entry["shape"])
    return tensors


def widen(array):
    if array.dtype == np.uint8:  # e4m3
        exponent, mantissa = (array >> 3 & 15).astype(np.int32), (array & 7).astype(np.float32)
        size = np.where(exponent > 0, np.ldexp(8 + mantissa, exponent - 10), np.ldexp(mantissa, -9))
        return np.where(array & 128, -size, size).astype(np.float32)
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array.astype(np.float32)


def tensor_name(layer, name):
    which = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj", "shared": "gate_up_proj"}[name[2:]]
    part = {"u": "v", "v": "u", "w": "weight"}[name[0]]
    return f"model.layers.{layer}.mlp.{which}.{part}"


def matrix_of(checkpoint, layer, name):
    """The kernel's matrix [inputs, outputs] from the checkpoint's [outputs, inputs]."""
    return checkpoint[tensor_name(layer, name)].T


def scales_of(checkpoint, layer, name):
    """Scales [1, outputs] of a matrix in e4m3; 1 for others."""
    return checkpoint[tensor_name(layer, name) + "_scale"].T if matrix_of(checkpoint, layer, name).dtype == np.uint8 else np.ones((1, 1), np.float32)


def folded(checkpoint, layer, name, matrix, fused):
    """Matrices that read x hold the norm's weights where the kernels have the norm."""
    if fused["norm_eps"] is None or name[0] == "v" or name[2:] == "down" or matrix.dtype == np.uint8:  # codes stay what they are
        return matrix
    from nki_shim_core import rounded
    gain = widen(checkpoint[f"model.layers.{layer}.post_attention_layernorm.weight"])
    return (rounded(widen(matrix) * gain[:, None], "bfloat16").view(np.uint32) >> 16).astype(np.uint16)


def rank_part(matrix, name, rank, tp, slices):
    """Gate and up are cut by outputs, down by inputs; factors on the other side are whole. Factors of slices lie one below
    the other in the checkpoint."""
    if slices > 1 and name[0] != "w":
        return np.split(matrix, slices, axis=1)[rank]
    if name[2:] == "down":
        return np.split(matrix, tp, axis=0)[rank] if name[0] != "v" else matrix
    return np.split(matrix, tp, axis=1)[rank] if name[0] != "u" else matrix


def output_part(scales, name, rank, tp, slices):
    """Scales go with the outputs: cut where those are."""
    cut = name[0] != "w" if slices > 1 else False
    whole = not cut and (name[2:] == "down" or name[0] == "u")
    return scales if whole else np.split(scales, slices if cut else tp, axis=1)[rank]


def packed(entry, matrices):
    """Element (k, n) of a plane lies in row k mod R; tiles go by chunk, column tile, plane, tile of the chunk."""
    out = np.zeros((entry["shape"][0], entry["shape"][1] // entry["cores"]), dtype=matrices[0].dtype)
    columns, planes = entry["columns"], entry["planes"]
    tiles = [min(entry["chunk_tiles"], -(-p["inputs"] // p["tile_rows"])) for p in planes]
    n_tiles = -(-planes[0]["outputs"] // columns)
    for i, (plane, matrix) in enumerate(zip(planes, matrices)):
        rows = plane["tile_rows"]
        for k in range(plane["inputs"]):
            tile, chunk = (k // rows) % tiles[i], (k // rows) // tiles[i]
            for first in range(0, plane["outputs"], columns):
                width = min(columns, plane["outputs"] - first)
                place = ((chunk * n_tiles + first // columns) * sum(tiles) + sum(tiles[:i]) + tile) * columns
                out[k % rows, place:place + width] = matrix[k, first:first + width]
    return out


def packed_scales(entry, scales):
    """Output n of a plane lies in row n mod columns, in the column of its tile and plane; or all in one row."""
    shape = (entry["shape"][0], entry["shape"][1] // entry["cores"])
    if shape == scales[0].shape:
        return scales[0]
    out = np.zeros(shape, dtype=np.float32)
    for i, plane in enumerate(scales):
        for n in range(plane.shape[1]):
            out[n % entry["columns"], n // entry["columns"] * len(scales) + i] = plane[0, n]
    return out


def reference(checkpoint, layer, form, x, slices, fused):
    given = x
    if fused["norm_eps"] is not None:
        gain = widen(checkpoint[f"model.layers.{layer}.post_attention_layernorm.weight"]).astype(np.float64)
        x = x / np.sqrt((x * x).mean(1, keepdims=True) + fused["norm_eps"]) * gain

    def through(name, rank, value, part):
        first = "u_shared" if form["shared"] and name != "down" else f"u_{name}"
        names = [first, f"v_{name}"] if rank else [f"w_{name}"]
        for matrix in names:
            whole = matrix_of(checkpoint, layer, matrix)
            own = rank_part(whole, matrix, part, slices, slices) if slices > 1 else whole
            scale = scales_of(checkpoint, layer, matrix)
            own_scale = rank_part(scale, matrix, part, slices, slices) if slices > 1 and scale.size > 1 else scale
            value = value @ (widen(np.ascontiguousarray(own)).astype(np.float64) * own_scale)
        return value
    y = 0
    for part in range(slices):
        gate, up = through("gate", form["gate"], x, part), through("up", form["up"], x, part)
        y = y + through("down", form["down"], gate / (1.0 + np.exp(-gate)) * up, part)
    return given + y if fused["residual"] else y


KINDS = {np.dtype(np.uint16): "bfloat16", np.dtype(np.uint8): "float8_e4m3", np.dtype(np.float32): "float32"}


def load_kernel(path, name):
    for module in [n for n in sys.modules if n in ("nki", "neuronxcc") or n.startswith(("nki.", "neuronxcc."))]:
        del sys.modules[module]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def simulate(program, manifest, kernel):
    """The kernel's values on the simulated core, operands drawn by the program, against float64."""
    form = manifest["forms"][kernel["form"]]
    width = manifest["intermediate"] // (manifest["tp"] * manifest["lnc"])
    ranks = {name: form[name] or "dense" for name in ("gate", "up", "down")}
    command = [program, "simulate", "--target", manifest["target"], "--kernel", "mlp", "--check", "--json",
               "--shape", f"{kernel['rows']},{manifest['hidden']},{max(1, form['gate'], form['down'])},{width}",
               "--ranks", ",".join(f"{name}={rank}" for name, rank in ranks.items()),
               "--tiling", kernel["tiling"].replace(" ", ","), "--threads", "1"]
    fused = manifest["fused"]
    command += ["--shared"] * form["shared"] + ["--residual"] * fused["residual"] + ["--fp8"] * (manifest["weights_dtype"] == "fp8")
    command += ["--norm", str(fused["norm_eps"])] if fused["norm_eps"] is not None else []
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{kernel['id']}: simulate: {done.stderr}"
    found = json.loads(done.stdout)
    assert found["max_rel_err"] <= found["max_rel_err_limit"], f"{kernel['id']}: simulated values are off: {found}"


def main():
    package, folder = sys.argv[1], sys.argv[2]
    with open(os.path.join(package, "manifest.json")) as file:
        manifest = json.load(file)
    assert manifest["format"] == "neuronmlp-trainium-package" and manifest["version"] == 5
    checkpoint = read_safetensors(os.path.join(folder, "model.safetensors"))
    weights = [read_safetensors(os.path.join(package, entry["file"])) for entry in manifest["weights"]]
    forms, tp, lnc = manifest["forms"], manifest["tp"], manifest["lnc"]
    with open(os.path.join(folder, "config.json")) as file:
        slices = json.load(file).get("neuronmlp", {}).get("slices", 1)
    assert len(weights) == tp and manifest["slices"] == slices
    if slices > 1:  # nothing is on two ranks
        mlps = sum(tensor.nbytes for name, tensor in checkpoint.items() if ".mlp." in name)
        assert sum(entry["bytes"] for entry in manifest["weights"]) <= 1.01 * mlps, "more bytes than in the checkpoint"
    for rank in range(tp):
        wanted, held, stored = set(), 0, 0
        for layer, form in enumerate(manifest["layers"]):
            for entry in forms[form]["packing"]:
                name = f"layers.{layer}.{entry['tensor']}"
                if entry.get("norm"):  # weight k in row k mod rows, tile by tile
                    gain = widen(checkpoint[f"model.layers.{layer}.post_attention_layernorm.weight"])
                    want = np.zeros(entry["shape"], dtype=np.float32)
                    for k in range(manifest["hidden"]):
                        want[k % entry["columns"], k // entry["columns"]] = gain[k]
                    assert np.array_equal(weights[rank][name], want), f"{name} is packed otherwise"
                    wanted.add(name)
                    held += want.nbytes
                    stored += gain.nbytes
                    continue
                names = [p["matrix"] for p in entry["planes"]]
                first = rank * lnc  # parts are counted over the cores of all ranks
                parts = [[rank_part(folded(checkpoint, layer, name, matrix_of(checkpoint, layer, name), manifest["fused"]), name,
                                    first + core, tp * lnc, slices) for name in names] for core in range(entry["cores"])]
                if entry.get("scales"):
                    cut = lambda matrix, part: output_part(scales_of(checkpoint, layer, matrix), matrix, part, tp * lnc, slices)  # noqa: E731
                    parts = [[cut(matrix, first + core) for matrix in names] for core in range(entry["cores"])]
                matrices = [m for part in parts for m in part]
                want = np.concatenate([(packed_scales if entry.get("scales") else packed)(entry, part) for part in parts], axis=1)
                assert np.array_equal(weights[rank][name].view(np.uint8), np.ascontiguousarray(want).view(np.uint8)), f"{name} is packed otherwise"
                wanted.add(name)
                held += want.nbytes
                stored += sum(m.nbytes for m in matrices)
        assert wanted == set(weights[rank]), "the file has other tensors than the manifest says"
        assert held == manifest["weights"][rank]["bytes"], "the manifest has another size"
        assert held <= 1.01 * stored, f"{held} bytes packed, {stored} in the checkpoint"
    others = read_safetensors(os.path.join(package, "checkpoint", "model.safetensors"))
    plain = {name for name in checkpoint if ".mlp." not in name and not name.endswith("_scale")}  # quantised ones are widened
    assert set(others) == plain, "other weights are missing or too many"
    assert all(np.array_equal(others[name], checkpoint[name]) for name in others if others[name].dtype == checkpoint[name].dtype)

    from nki_shim_core import marked, rounded
    os.environ["NKI_SHIM_TARGET"] = manifest["target"]
    rng = np.random.default_rng(3)
    for kernel in manifest["kernels"]:
        function = load_kernel(os.path.join(package, kernel["file"]), kernel["id"])
        layer = manifest["layers"].index(kernel["form"])
        sizes = np.resize([3.0, 1.0, 0.25], kernel["rows"])[:, None]  # a norm must matter
        x = rounded(sizes * rng.standard_normal((kernel["rows"], manifest["hidden"])), "bfloat16")
        y = 0
        for rank in range(tp):
            given = [x if name == "x" else weights[rank][f"layers.{layer}.{name}"] for name in kernel["arguments"]]
            arguments = [marked(np.ascontiguousarray(a if name == "x" else widen(a), dtype=np.float32), "bfloat16" if name == "x" else KINDS[a.dtype])
                         for name, a in zip(kernel["arguments"], given)]
            part = (function[lnc] if lnc > 1 else function)(*arguments)
            y = y + np.asarray(part).astype(np.float64).reshape(lnc, *x.shape).sum(0)
        if lnc > 1:
            try:
                function(*arguments)
                raise SystemExit(f"{kernel['id']} ran on one core of two")
            except AssertionError as error:
                assert f"{kernel['id']}[{lnc}](...)" in str(error)
        want = reference(checkpoint, layer, forms[kernel["form"]], x.astype(np.float64), slices, manifest["fused"])
        error = float(np.abs(y - want).max() / np.abs(want).max())
        assert error <= 2e-2, f"{kernel['id']}: off float64 by {error:.2e}"
        if len(sys.argv) > 3:
            simulate(sys.argv[3], manifest, kernel)
    print(f"package: {len(manifest['layers'])} layers, {len(forms)} forms, {len(manifest['kernels'])} kernels, "
          f"{tp} ranks, {held} bytes for {stored} on the last: ok")


if __name__ == "__main__":
    main()
