"""The error curves of a checkpoint compressed by plain SVD against NumPy's singular values of the dense weights.

Usage: check_curve.py DENSE_DIR COMPRESSED_DIR"""

import json
import struct
import sys

import numpy as np


def read_bf16(directory):
    with open(directory + "/model.safetensors", "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", name
        begin, end = entry["data_offsets"]
        bits = np.frombuffer(data[begin:end], dtype="<u2").astype(np.uint32) << 16
        yield name, bits.view(np.float32).reshape(entry["shape"]).astype(np.float64)


def main():
    record = json.load(open(sys.argv[2] + "/config.json"))["neuronmlp"]
    step, n_checked = record["error_curve_step"], 0
    assert step % record["tile"] == 0
    for name, weight in read_bf16(sys.argv[1]):
        matrix = name.removesuffix(".weight")
        if ".mlp." not in matrix:
            continue
        energy = np.linalg.svd(weight, compute_uv=False) ** 2
        tail = np.append(np.cumsum(energy[::-1])[::-1], 0) / energy.sum()  # lost when k are kept
        curve = record["error_curve"][matrix]
        ranks = [min(k * step, len(energy)) for k in range(len(curve))]
        assert ranks[-1] == len(energy), (matrix, ranks[-1])
        np.testing.assert_allclose(curve, tail[ranks], rtol=6e-4, atol=1e-9, err_msg=matrix)  # four digits are kept
        np.testing.assert_allclose(record["error"][matrix], tail[record["ranks"][matrix]], rtol=6e-4, err_msg=matrix)
        n_checked += 1
    assert n_checked == 12, n_checked
    print("%d curves equal the tails of the singular values" % n_checked)


main()
