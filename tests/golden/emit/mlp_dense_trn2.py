"""mlp on one trn2 NeuronCore: y = (silu(x w_gate) * (x w_up)) w_down.

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
S = 512                 # rows (tokens)
H = 1024                # hidden size
O = 2048                # intermediate size
TILE_S = 128            # one tile along S
TILE_H = 128            # one tile along H
TILE_W_GATE_UP = 128    # columns of one tile of W_GATE_UP
RUN_W_GATE_UP = 2048    # columns of one run of tiles of W_GATE_UP
SPAN_W_GATE_UP = 8192   # columns of one load of W_GATE_UP
TILE_W_DOWN = 512       # columns of one tile of W_DOWN
RUN_W_DOWN = 8192       # columns of one load of W_DOWN


@nki.jit
def mlp(x, w_gate_up, w_down):
    """y = (silu(x w_gate) * (x w_up)) w_down

    Arguments, in HBM:
        x          [S, H]         bfloat16, activations, one token a row
        w_gate_up  [128, 32768]   bfloat16, two weights in tiles, see pack()
        w_down     [128, 16384]   bfloat16, weights in tiles, see pack()
    Returns:
        y          [S, H]         bfloat16, result, one token a row

    SBUF: 76.0 of 208.0 KiB per partition, with every buffer in as many copies as planned.
    PSUM: 7 of 8 banks.
    Instructions: 442 with all loops unrolled.
    """
    y = nl.ndarray((S, H), dtype=nl.bfloat16, buffer=nl.shared_hbm)

    # x is read once for gate and up
    xt = nl.ndarray((P, H // TILE_H, 1, S), dtype=nl.bfloat16, buffer=nl.sbuf)
    for xh in range(H // TILE_H):
        xh_start = xh * TILE_H
        nisa.dma_transpose(dst=xt[0:P, xh, 0, 0:S], src=x[0:S, xh_start:xh_start + TILE_H], axes=(1, 0))

    # gate and up of one tile follow each other; silu and product on the way out of PSUM, never to
    # HBM
    act = nl.ndarray((P, 16, 1, S), dtype=nl.bfloat16, buffer=nl.sbuf)
    for w_gate_up_b in range(4):
        w_gate_up_b_start = w_gate_up_b * SPAN_W_GATE_UP
        w = nl.ndarray((P, 8192), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=w, src=w_gate_up[0:P, w_gate_up_b_start:w_gate_up_b_start + SPAN_W_GATE_UP])
        for w_gate_up_n in range(4):
            acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
            for w_gate_up_k in range(8):
                w_gate_up_k_at = w_gate_up_n * RUN_W_GATE_UP + w_gate_up_k * TILE_W_GATE_UP
                nisa.nc_matmul(
                    dst=acc,
                    stationary=w[0:P, w_gate_up_k_at:w_gate_up_k_at + TILE_W_GATE_UP],
                    moving=xt[0:P, w_gate_up_k, 0, 0:S],
                    accumulate=(w_gate_up_k > 0),
                )
            silu = nl.ndarray((P, 1, S), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=silu[0:P, 0, 0:S], op=nl.silu, data=acc)
            acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
            for w_gate_up_k2 in range(8):
                w_gate_up_k2_at = w_gate_up_n * RUN_W_GATE_UP + w_gate_up_k2 * TILE_W_GATE_UP
                nisa.nc_matmul(
                    dst=acc,
                    stationary=w[0:P, w_gate_up_k2_at + 1024:w_gate_up_k2_at + 1024 + TILE_W_GATE_UP],
                    moving=xt[0:P, w_gate_up_k2, 0, 0:S],
                    accumulate=(w_gate_up_k2 > 0),
                )
            nisa.tensor_tensor(
                dst=act[0:P, w_gate_up_b * 4 + w_gate_up_n, 0, 0:S],
                data1=acc,
                data2=silu[0:P, 0, 0:S],
                op=nl.multiply,
                engine=nisa.engine.vector,
            )

    # down projection of what is on chip, contracted over the intermediate features
    out = nl.ndarray((P, 1, S // TILE_S, 1024), dtype=nl.bfloat16, buffer=nl.sbuf)
    for w_down_b in range(2):
        w_down_b_start = w_down_b * RUN_W_DOWN
        w = nl.ndarray((P, 8192), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=w, src=w_down[0:P, w_down_b_start:w_down_b_start + RUN_W_DOWN])
        for w_down_q in range(S // TILE_S):
            acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
            for w_down_k in range(16):
                nisa.nc_matmul(
                    dst=acc,
                    stationary=act[0:P, w_down_k, 0, w_down_q * TILE_S:w_down_q * TILE_S + TILE_S],
                    moving=w[0:P, w_down_k * TILE_W_DOWN:w_down_k * TILE_W_DOWN + TILE_W_DOWN],
                    accumulate=(w_down_k > 0),
                )
            nisa.tensor_copy(
                dst=out[0:P, 0, w_down_q, w_down_b * TILE_W_DOWN:w_down_b * TILE_W_DOWN + TILE_W_DOWN],
                src=acc,
                engine=nisa.engine.scalar,
            )
    for w_down_sq in range(S // TILE_S):
        w_down_sq_start = w_down_sq * TILE_S
        nisa.dma_copy(
            dst=y[w_down_sq_start:w_down_sq_start + TILE_S, 0:H],
            src=out[0:P, 0, w_down_sq, 0:1024],
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
        "w_gate": rng.standard_normal((H, O), dtype=np.float32) / np.float32(np.sqrt(H)),
        "w_up": rng.standard_normal((H, O), dtype=np.float32) / np.float32(np.sqrt(H)),
        "w_down": rng.standard_normal((O, H), dtype=np.float32) / np.float32(np.sqrt(O)),
    }


def arguments(m):
    """The kernel's arguments from the matrices of inputs()."""
    return [
        m["x"],
        pack([m["w_gate"], m["w_up"]], 8, P),
        pack([m["w_down"]], 16, 512),
    ]


def reference(m):
    """The same in float64."""
    m = {name: a.astype(np.float64) for name, a in m.items()}
    x = m["x"]
    gate, up = x @ m["w_gate"], x @ m["w_up"]
    act = gate / (1.0 + np.exp(-gate)) * up
    y = act @ m["w_down"]
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
        y = mlp(*tensors)
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
        y = nki.simulate(mlp)(*args)
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
