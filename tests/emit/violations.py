"""The NumPy stand-in refuses what the documentation forbids: one seeded violation per case, each with the rule it breaks.

usage: violations.py
Every case is a kernel that is right but for one line; `control` kernels without the mistake must run.
"""
import os
import sys
import tempfile
import importlib.util

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "nki_shim"))
from nki_shim_core import Refused, marked, rounded  # noqa: E402

CURRENT = '''
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(a, b):
    y = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    x = nl.ndarray((128, 2, 128), dtype=nl.bfloat16, buffer=nl.sbuf)
    w = nl.ndarray((128, 2, 512), dtype=nl.bfloat16, buffer=nl.sbuf)
    acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    out = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.sbuf)
    for k in range(2):
        nisa.dma_copy(dst=x[0:128, k, 0:128], src=a[k * 128:k * 128 + 128, 0:128])
        nisa.dma_copy(dst=w[0:128, k, 0:512], src=b[k * 128:k * 128 + 128, 0:512])
        nisa.nc_matmul(dst=acc, stationary=x[0:128, k, 0:128], moving=w[0:128, k, 0:512], accumulate=(k > 0))
    nisa.tensor_copy(dst=out, src=acc, engine=nisa.engine.vector)
    nisa.dma_copy(dst=y, src=out)
    return y
'''

LEGACY = '''
from neuronxcc import nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl

@nki.jit
def kernel(a, b):
    y = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    i_p = nl.arange(128)[:, None]
    i_f = nl.arange(512)[None, :]
    acc = nl.zeros((nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.psum)
    out = nl.ndarray((nl.par_dim(128), 512), dtype=nl.bfloat16, buffer=nl.sbuf)
    for k in nl.affine_range(2):
        x = nl.ndarray((nl.par_dim(128), 128), dtype=nl.bfloat16, buffer=nl.sbuf)
        w = nl.zeros((nl.par_dim(128), 512), dtype=nl.bfloat16, buffer=nl.sbuf)
        x[0:128, 0:128] = nl.load(a[k * 128:k * 128 + 128, 0:128])
        w[i_p, i_f] = nl.load(b[k * 128 + i_p, i_f], mask=(k * 128 + i_p < 256))
        acc[0:128, 0:512] += nisa.nc_matmul(x[0:128, 0:128], w[0:128, 0:512])
    out[0:128, 0:512] = nl.copy(acc[0:128, 0:512], dtype=nl.bfloat16)
    nl.store(y[i_p, i_f], value=out[i_p, i_f])
    return y
'''

# (rule, text to replace, replacement)
CURRENT_VIOLATIONS = [
    ("uninitialised", "    nisa.tensor_copy(dst=out, src=acc, engine=nisa.engine.vector)\n", ""),
    ("accumulate_first", "accumulate=(k > 0)", "accumulate=True"),
    ("accumulate_first", "    for k in range(2):", "    nisa.memset(dst=acc, value=0.0)\n    for k in range(2):".replace("for k", "for k")),
    ("psum_dtype", "dtype=nl.float32, buffer=nl.psum", "dtype=nl.bfloat16, buffer=nl.psum"),
    ("operand_memory", "acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)", "acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)"),
    ("operand_memory", "nisa.dma_copy(dst=y, src=out)", "nisa.dma_copy(dst=y, src=acc)"),
    ("operand_memory", "engine=nisa.engine.vector", "engine=nisa.engine.gpsimd"),
    ("partition_count", "x = nl.ndarray((128, 2, 128)", "x = nl.ndarray((256, 2, 128)"),
    ("partition_start", "src=acc, engine", "src=acc, engine=nisa.engine.vector)\n    nisa.tensor_copy(dst=out[16:48, 0:512], src=acc[16:48, 0:512], engine"),
    ("index_range", "src=a[k * 128:k * 128 + 128, 0:128]", "src=a[k * 129:k * 129 + 128, 0:128]"),
    ("element_count", "dst=x[0:128, k, 0:128], src", "dst=x[0:128, k, 0:64], src"),
    ("dma_dtype", "out = nl.ndarray((128, 512), dtype=nl.bfloat16", "out = nl.ndarray((128, 512), dtype=nl.float32"),
    ("matmul_dtype", "    for k in range(2):", "    w = nl.ndarray((128, 2, 512), dtype=nl.float32, buffer=nl.sbuf)\n    nisa.memset(dst=w, value=0.0)\n    b = nl.ndarray((256, 512), dtype=nl.float32, buffer=nl.hbm)\n    nisa.dma_copy(dst=b[0:128, 0:512], src=w[0:128, 0, 0:512])\n    nisa.dma_copy(dst=b[128:256, 0:512], src=w[0:128, 1, 0:512])\n    for k in range(2):"),
    ("matmul_contraction", "stationary=x[0:128, k, 0:128]", "stationary=x[0:64, k, 0:128]"),
    ("matmul_result", "dst=acc, stationary", "dst=acc[0:128, 0:256], stationary"),
    ("psum_bank", "acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)", "acc = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.psum)[0:128, 256:768]"),
    ("sbuf_capacity", "    for k in range(2):", "    big = nl.ndarray((128, 110000), dtype=nl.bfloat16, buffer=nl.sbuf)\n    for k in range(2):"),
    ("psum_capacity", "    for k in range(2):", "    more = nl.ndarray((128, 8, 512), dtype=nl.float32, buffer=nl.psum)\n    for k in range(2):"),
    ("output_memory", "buffer=nl.shared_hbm", "buffer=nl.private_hbm"),
    ("output_unwritten", "nisa.dma_copy(dst=y, src=out)", "nisa.dma_copy(dst=y[0:64, 0:512], src=out[0:64, 0:512])"),
    ("read_only", "    return y", "    nisa.dma_copy(dst=b[0:128, 0:512], src=out)\n    return y"),
    ("tensor_tensor_psum", "nisa.tensor_copy(dst=out, src=acc, engine=nisa.engine.vector)", "nisa.tensor_tensor(dst=out, data1=acc, data2=acc, op=nl.add, engine=nisa.engine.vector)"),
    ("rank", "out = nl.ndarray((128, 512)", "out = nl.ndarray((128,)"),
    ("tensor_operator", "nisa.tensor_copy(dst=out, src=acc, engine=nisa.engine.vector)", "out = acc + acc"),
    ("assignment", "nisa.tensor_copy(dst=out, src=acc, engine=nisa.engine.vector)", "out[0:128, 0:512] = acc"),
    ("syntax", "accumulate=(k > 0)", "accumulate=(k is not 0)"),
    ("matmul_stationary", "x = nl.ndarray((128, 2, 128)", "x = nl.ndarray((128, 4, 128)", "stationary=x[0:128, k, 0:128]", "stationary=x[0:128, 0:2, 0:128]"),
    ("psum_capacity", "    for k in range(2):", "    more = nl.ndarray((128, 7, 512), dtype=nl.float32, buffer=nl.psum)\n    nisa.dma_transpose(dst=x[0:128, 0, 0:128], src=a[0:128, 0:128], axes=(1, 0))\n    for k in range(2):"),
    ("transpose_align", "    for k in range(2):", "    nisa.dma_transpose(dst=x[0:128, 0, 1:127], src=a[0:126, 0:128], axes=(1, 0))\n    for k in range(2):"),
    ("transpose_size", "    nisa.dma_copy(dst=y, src=out)", "    nisa.nc_transpose(dst=acc, data=out, engine=nisa.engine.tensor)\n    nisa.dma_copy(dst=y, src=out)"),
]

LEGACY_VIOLATIONS = [
    ("accumulate_first", "acc = nl.zeros((nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.psum)", "acc = nl.ndarray((nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.psum)\n    acc[0:128, 0:512] = nl.full((nl.par_dim(128), 512), 1.0, dtype=nl.float32)"),
    ("uninitialised", "acc = nl.zeros((nl.par_dim(128), 512), dtype=nl.float32", "acc = nl.ndarray((nl.par_dim(128), 512), dtype=nl.float32"),
    ("loop_variable", "        acc[0:128", "        if k == 0:\n            pass\n        acc[0:128"),
    ("trip_count", "    for k in nl.affine_range(2):", "    for j in nl.affine_range(2):\n        for i in nl.affine_range(j):\n            pass\n    for k in nl.affine_range(2):"),
    ("arange", "i_f = nl.arange(512)[None, :]", "i_f = nl.arange(512)[:]"),
    ("index_range", "b[k * 128 + i_p, i_f], mask=(k * 128 + i_p < 256)", "b[k * 200 + i_p, i_f]"),
    ("par_dim", "out = nl.ndarray((nl.par_dim(128), 512)", "out = nl.ndarray((128, 512)"),
    ("block_dim", "out = nl.ndarray((nl.par_dim(128), 512)", "out = nl.ndarray((2, nl.par_dim(128), 512)"),
    ("operand_memory", "acc = nl.zeros((nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.psum)", "acc = nl.zeros((nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.sbuf)"),
    ("dma_dtype", "out = nl.ndarray((nl.par_dim(128), 512), dtype=nl.bfloat16", "out = nl.ndarray((nl.par_dim(128), 512), dtype=nl.float32"),
    ("output_unwritten", "value=out[i_p, i_f])", "value=out[i_p, i_f], mask=(i_p < 100))"),
    ("output_memory", "buffer=nl.shared_hbm", "buffer=nl.private_hbm"),
    ("read_only", "    return y", "    nl.store(b[i_p, i_f], value=out[i_p, i_f])\n    return y"),
]


def run(text, folder, number):
    path = os.path.join(folder, f"kernel{number}.py")
    with open(path, "w") as file:
        file.write(text)
    spec = importlib.util.spec_from_file_location(f"kernel{number}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = np.random.default_rng(0)
    a, b = (marked(rounded(rng.standard_normal((256, n)), "bfloat16"), "bfloat16") for n in (128, 512))
    y = module.kernel(a, b)
    want = a.astype(np.float64).T @ b.astype(np.float64)
    if np.abs(y - want).max() > 0.01 * np.abs(want).max():
        raise AssertionError("the control kernel computes something else")


def main():
    failures = count = 0
    with tempfile.TemporaryDirectory() as folder:
        for base, target, cases in ((CURRENT, "trn2", CURRENT_VIOLATIONS), (LEGACY, "trn1", LEGACY_VIOLATIONS)):
            os.environ["NKI_SHIM_TARGET"] = target
            run(base, folder, count)
            for rule, *edits in cases:
                count += 1
                text = base
                for find, put in zip(edits[::2], edits[1::2]):
                    assert find in text, find
                    text = text.replace(find, put, 1)
                if rule == "accumulate_first" and "memset" in text:
                    text = text.replace("accumulate=(k > 0)", "accumulate=True")
                try:
                    run(text, folder, count)
                    said = "accepted"
                except Refused as refusal:
                    said = str(refusal)
                if not said.startswith(rule + ":"):
                    failures += 1
                    print(f"FAILED {target}: expected {rule}, found {said}\n  {edits[-1]}")
    print(f"{count} seeded violations, {failures} not refused as they should be")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
