"""xuv on one trn2 NeuronCore: y = (x u) v.

NKI 0.3 or later (import nki), Neuron SDK 2.29 to 2.32.
Printed by neuronmlp.
Checked against a simulation of the tile program; not yet run on hardware.
"""
import argparse
import os
import time

import ml_dtypes
import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl

P = 128                 # partitions of SBUF and PSUM
S = 600                 # rows (tokens)
H = 1024                # hidden size
R = 256                 # rank
O = 1000                # outputs
TILE_S = 128            # one tile along S
BLOCK_S = 512           # one block of tiles along S
TILE_H = 128            # one tile along H
TILE_U = 128            # columns of one tile of U
RUN_U = 1024            # columns of one load of U
TILE_V = 512            # columns of one tile of V
RUN_V = 1024            # columns of one load of V


@nki.jit
def xuv(x, u, v):
    """y = (x u) v

    Arguments, in HBM:
        x          [S, H]         bfloat16, activations, one token a row
        u          [128, 2048]    bfloat16, weights in tiles, see pack()
        v          [128, 2048]    bfloat16, weights in tiles, see pack()
    Returns:
        y          [S, O]         bfloat16, result, one token a row

    SBUF: 34.0 of 208.0 KiB per partition, with every buffer in as many copies as planned.
    PSUM: 8 of 8 banks.
    Instructions: 130 with all loops unrolled.
    """
    y = nl.ndarray((S, O), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    xu = nl.ndarray((P, 2, 1, BLOCK_S), dtype=nl.bfloat16, buffer=nl.sbuf)
    for strip in range((S + BLOCK_S - 1) // BLOCK_S):
        strip_start = strip * BLOCK_S
        strip_size = min(BLOCK_S, S - strip_start)

        # first factors stationary, x moving: the products come out transposed, as the next ones
        # want them
        xt = nl.ndarray((P, 8, 1, BLOCK_S), dtype=nl.bfloat16, buffer=nl.sbuf)
        for xq in range(min(BLOCK_S // TILE_S, (S - strip_start + TILE_S - 1) // TILE_S)):
            xq_start = strip_start + xq * TILE_S
            xq_size = min(TILE_S, S - xq_start)
            x_rows = nl.ndarray((P, H), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.dma_copy(dst=x_rows[0:xq_size, 0:H], src=x[xq_start:xq_start + xq_size, 0:H])
            flip = nl.ndarray((P, 4, TILE_S), dtype=nl.bfloat16, buffer=nl.psum)
            for xt_t in range(4):
                nisa.nc_transpose(
                    dst=flip[0:P, xt_t, 0:xq_size],
                    data=x_rows[0:xq_size, xt_t * TILE_H:xt_t * TILE_H + TILE_H],
                    engine=nisa.engine.tensor,
                )
            nisa.tensor_copy(
                dst=xt[0:P, 0:4, 0, xq * TILE_S:xq * TILE_S + xq_size],
                src=flip[0:P, 0:4, 0:xq_size],
                engine=nisa.engine.vector,
            )
            flip = nl.ndarray((P, 4, TILE_S), dtype=nl.bfloat16, buffer=nl.psum)
            for xt_t in range(4):
                nisa.nc_transpose(
                    dst=flip[0:P, xt_t, 0:xq_size],
                    data=x_rows[0:xq_size, xt_t * TILE_H + 512:xt_t * TILE_H + 512 + TILE_H],
                    engine=nisa.engine.tensor,
                )
            nisa.tensor_copy(
                dst=xt[0:P, 4:8, 0, xq * TILE_S:xq * TILE_S + xq_size],
                src=flip[0:P, 0:4, 0:xq_size],
                engine=nisa.engine.scalar,
            )
        w = nl.ndarray((P, 2048), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=w, src=u)
        for u_n in range(2):
            acc = nl.ndarray((P, BLOCK_S), dtype=nl.float32, buffer=nl.psum)
            for u_k in range(8):
                u_k_at = u_n * RUN_U + u_k * TILE_U
                nisa.nc_matmul(
                    dst=acc[0:P, 0:strip_size],
                    stationary=w[0:P, u_k_at:u_k_at + TILE_U],
                    moving=xt[0:P, u_k, 0, 0:strip_size],
                    accumulate=(u_k > 0),
                )
            nisa.tensor_copy(
                dst=xu[0:P, u_n, 0, 0:strip_size],
                src=acc[0:P, 0:strip_size],
                engine=nisa.engine.vector,
            )

        # the strip x u is stationary and v moves: rows of y, summed over the whole rank in PSUM
        out = nl.ndarray((P, 1, BLOCK_S // TILE_S, 1024), dtype=nl.bfloat16, buffer=nl.sbuf)
        w = nl.ndarray((P, 2048), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=w, src=v)
        for v_n in range(2):
            v_n_start = v_n * TILE_V
            v_n_size = min(TILE_V, 1000 - v_n_start)
            for v_q in range(min(BLOCK_S // TILE_S, (S - strip_start + TILE_S - 1) // TILE_S)):
                v_q_start = strip_start + v_q * TILE_S
                v_q_size = min(TILE_S, S - v_q_start)
                acc = nl.ndarray((P, BLOCK_S), dtype=nl.float32, buffer=nl.psum)
                for v_k in range(2):
                    v_k_at = v_n * RUN_V + v_k * TILE_V
                    nisa.nc_matmul(
                        dst=acc[0:v_q_size, 0:v_n_size],
                        stationary=xu[0:P, v_k, 0, v_q * TILE_S:v_q * TILE_S + v_q_size],
                        moving=w[0:P, v_k_at:v_k_at + v_n_size],
                        accumulate=(v_k > 0),
                    )
                nisa.tensor_copy(
                    dst=out[0:v_q_size, 0, v_q, v_n_start:v_n_start + v_n_size],
                    src=acc[0:v_q_size, 0:v_n_size],
                    engine=nisa.engine.scalar,
                )
        for v_sq in range(min(BLOCK_S // TILE_S, (S - strip_start + TILE_S - 1) // TILE_S)):
            v_sq_start = strip_start + v_sq * TILE_S
            v_sq_size = min(TILE_S, S - v_sq_start)
            nisa.dma_copy(
                dst=y[v_sq_start:v_sq_start + v_sq_size, 0:O],
                src=out[0:v_sq_size, 0, v_sq, 0:1000],
            )
    return y


def pack(planes, chunk_tiles, columns, rows=()):
    """Cuts matrices [K, N] with as many columns into tiles, in the order the kernel uses them.

    A tile has P rows, or those given for its plane. Row p of the result holds row p of every tile: by
    chunk of K, column tile, plane, tile of the chunk.
    """
    parts = []
    for i, plane in enumerate(planes):
        k, n = plane.shape
        size = rows[i] if rows else P
        tiles = min(chunk_tiles, -(-k // size))
        chunks, n_tiles = -(-k // (tiles * size)), -(-n // columns)
        padded = np.zeros((chunks * tiles * size, n_tiles * columns), dtype=plane.dtype)
        padded[:k, :n] = plane
        part = np.zeros((P, chunks, n_tiles, tiles, columns), dtype=plane.dtype)
        part[:size] = padded.reshape(chunks, tiles, size, n_tiles, columns).transpose(2, 0, 3, 1, 4)
        parts.append(part)
    used = max(min(plane.shape[0], rows[i] if rows else P) for i, plane in enumerate(planes))
    return np.concatenate(parts, axis=3).reshape(P, -1)[:used]


def inputs(seed=0):
    """Random activations and weights; the scale keeps results near 1."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((S, H), dtype=np.float32),
        "u": rng.standard_normal((H, R), dtype=np.float32) / np.float32(np.sqrt(H)),
        "v": rng.standard_normal((R, O), dtype=np.float32) / np.float32(np.sqrt(R)),
    }


def arguments(m):
    """The kernel's arguments from the matrices of inputs()."""
    return [
        m["x"],
        pack([m["u"]], 8, P),
        pack([m["v"]], 2, 512),
    ]


def reference(m):
    """The same in float64."""
    m = {name: a.astype(np.float64) for name, a in m.items()}
    x = m["x"]
    y = x @ m["u"] @ m["v"]
    return y


def on_device(args, iters):
    """Runs through PyTorch/XLA; returns the result and the median time of a call in us."""
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm

    device = torch_xla.device()
    tensors = [torch.from_numpy(a.astype(np.float32)).to(torch.bfloat16).to(device) for a in args]
    times = []
    for _ in range(5 + iters):
        xm.wait_device_ops()
        begin = time.perf_counter()
        y = xuv(*tensors)
        torch_xla.sync()
        xm.wait_device_ops()
        times.append(time.perf_counter() - begin)
    return y.cpu().to(torch.float32).numpy(), 1e6 * float(np.median(times[5:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="use NKI's CPU simulator, not a device")
    parser.add_argument("--iters", type=int, default=20, help="timed calls")
    options = parser.parse_args()
    if os.environ.setdefault("NEURON_LOGICAL_NC_CONFIG", "1") != "1":
        parser.error("this kernel is for one physical core per logical one: set NEURON_LOGICAL_NC_CONFIG=1")
    os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    dtype = ml_dtypes.bfloat16
    m = {name: a.astype(dtype).astype(np.float32) for name, a in inputs().items()}
    args = [a.astype(dtype) for a in arguments(m)]
    if options.simulate:
        y = nki.simulate(xuv)(*args)
    else:
        y, us = on_device(args, options.iters)
        print(f"latency {us:.1f} us")
    want = reference(m)
    error = np.abs(np.asarray(y).astype(np.float64) - want).max() / np.abs(want).max()
    limit = 2e-2
    print(f"largest error {error:.2e} of the largest value, limit {limit:.0e}")
    return 0 if error <= limit else 1


if __name__ == "__main__":
    raise SystemExit(main())
