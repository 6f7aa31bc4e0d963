"""mlp on one trn3 NeuronCore: y = (silu(x u_gate v_gate) * (x u_up v_up)) u_down v_down.

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
S = 100                 # rows (tokens)
H = 512                 # hidden size
R = 640                 # rank
O = 1100                # intermediate size
TILE_H = 128            # one tile along H
BLOCK_H = 256           # one block of tiles along H
TILE_U_GATE_UP = 128    # columns of one tile of U_GATE_UP
RUN_U_GATE_UP = 1024    # columns of one load of U_GATE_UP
TILE_V_GATE_UP = 128    # columns of one tile of V_GATE_UP
RUN_V_GATE_UP = 1280    # columns of one run of tiles of V_GATE_UP
SPAN_V_GATE_UP = 7680   # columns of one load of V_GATE_UP
TILE_U_DOWN = 128       # columns of one tile of U_DOWN
RUN_U_DOWN = 1152       # columns of one load of U_DOWN
TILE_V_DOWN = 128       # columns of one tile of V_DOWN


@nki.jit
def mlp(xT, u_gate_up, v_gate_up, u_down, v_down):
    """y = (silu(x u_gate v_gate) * (x u_up v_up)) u_down v_down

    Arguments, in HBM:
        xT         [H, S]         bfloat16, activations transposed, one token a column
        u_gate_up  [128, 5120]    bfloat16, two weights in tiles, see pack()
        v_gate_up  [128, 11520]   bfloat16, two weights in tiles, see pack()
        u_down     [128, 5760]    bfloat16, weights in tiles, see pack()
        v_down     [128, 2560]    bfloat16, weights in tiles, see pack()
    Returns:
        y          [S, H]         bfloat16, result, one token a row

    SBUF: 44.8 of 240.0 KiB per partition, with every buffer in as many copies as planned.
    PSUM: 8 of 8 banks.
    Instructions: 255 with all loops unrolled.
    """
    y = nl.ndarray((S, H), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    w_last = nl.ndarray((P, 20, 128), dtype=nl.bfloat16, buffer=nl.sbuf)
    w_held = nl.ndarray((P, 9, 128), dtype=nl.bfloat16, buffer=nl.sbuf)
    t = nl.ndarray((P, 10, 1, S), dtype=nl.bfloat16, buffer=nl.sbuf)
    td = nl.ndarray((P, 5, 1, S), dtype=nl.bfloat16, buffer=nl.sbuf)

    # first factors stationary, x moving: the products come out transposed, as the next ones want
    # them
    xt = nl.ndarray((P, H // TILE_H, 1, S), dtype=nl.bfloat16, buffer=nl.sbuf)
    for xh in range(H // TILE_H):
        xh_start = xh * TILE_H
        nisa.dma_copy(dst=xt[0:P, xh, 0, 0:S], src=xT[xh_start:xh_start + TILE_H, 0:S])
    w = nl.ndarray((P, 7680), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=w[0:P, 0:5120], src=u_gate_up)
    for u_gate_up_n in range(5):
        acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
        for u_gate_up_k in range(4):
            u_gate_up_k_at = u_gate_up_n * RUN_U_GATE_UP + u_gate_up_k * TILE_U_GATE_UP
            nisa.nc_matmul(
                dst=acc[0:P, 0:100],
                stationary=w[0:P, u_gate_up_k_at:u_gate_up_k_at + TILE_U_GATE_UP],
                moving=xt[0:P, u_gate_up_k, 0, 0:S],
                accumulate=(u_gate_up_k > 0),
            )
        nisa.tensor_copy(dst=t[0:P, u_gate_up_n, 0, 0:S], src=acc[0:P, 0:100], engine=nisa.engine.vector)
        acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
        for u_gate_up_k2 in range(4):
            u_gate_up_k2_at = u_gate_up_n * RUN_U_GATE_UP + u_gate_up_k2 * TILE_U_GATE_UP
            nisa.nc_matmul(
                dst=acc[0:P, 0:100],
                stationary=w[0:P, u_gate_up_k2_at + 512:u_gate_up_k2_at + 512 + TILE_U_GATE_UP],
                moving=xt[0:P, u_gate_up_k2, 0, 0:S],
                accumulate=(u_gate_up_k2 > 0),
            )
        nisa.tensor_copy(dst=t[0:P, u_gate_up_n + 5, 0, 0:S], src=acc[0:P, 0:100], engine=nisa.engine.vector)

    # gate and up of one tile follow each other; silu and product on the way out of PSUM, never to
    # HBM
    act = nl.ndarray((P, 9, 1, S), dtype=nl.bfloat16, buffer=nl.sbuf)
    for v_gate_up_b in range(2):
        v_gate_up_b_start = v_gate_up_b * SPAN_V_GATE_UP
        v_gate_up_b_size = min(SPAN_V_GATE_UP, 11520 - v_gate_up_b_start)
        v_gate_up_b_start2 = v_gate_up_b * 6
        w = nl.ndarray((P, 7680), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(
            dst=w[0:P, 0:v_gate_up_b_size],
            src=v_gate_up[0:P, v_gate_up_b_start:v_gate_up_b_start + v_gate_up_b_size],
        )
        for v_gate_up_n in range(min(6, 9 - v_gate_up_b_start2)):
            v_gate_up_n_start = v_gate_up_b * 768 + v_gate_up_n * 128
            v_gate_up_n_size = min(TILE_V_GATE_UP, 1100 - v_gate_up_n_start)
            acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
            for v_gate_up_k in range(5):
                v_gate_up_k_at = v_gate_up_n * RUN_V_GATE_UP + v_gate_up_k * TILE_V_GATE_UP
                nisa.nc_matmul(
                    dst=acc[0:v_gate_up_n_size, 0:100],
                    stationary=w[0:P, v_gate_up_k_at:v_gate_up_k_at + v_gate_up_n_size],
                    moving=t[0:P, v_gate_up_k, 0, 0:S],
                    accumulate=(v_gate_up_k > 0),
                )
            silu = nl.ndarray((P, 1, S), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(
                dst=silu[0:v_gate_up_n_size, 0, 0:S],
                op=nl.silu,
                data=acc[0:v_gate_up_n_size, 0:100],
            )
            acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
            for v_gate_up_k2 in range(5):
                v_gate_up_k2_at = v_gate_up_n * RUN_V_GATE_UP + v_gate_up_k2 * TILE_V_GATE_UP
                nisa.nc_matmul(
                    dst=acc[0:v_gate_up_n_size, 0:100],
                    stationary=w[0:P, v_gate_up_k2_at + 640:v_gate_up_k2_at + 640 + v_gate_up_n_size],
                    moving=t[0:P, v_gate_up_k2 + 5, 0, 0:S],
                    accumulate=(v_gate_up_k2 > 0),
                )
            nisa.tensor_tensor(
                dst=act[0:v_gate_up_n_size, v_gate_up_b_start2 + v_gate_up_n, 0, 0:S],
                data1=acc[0:v_gate_up_n_size, 0:100],
                data2=silu[0:v_gate_up_n_size, 0, 0:S],
                op=nl.multiply,
                engine=nisa.engine.vector,
            )

    # down projection of what is on chip, contracted over the intermediate features
    for u_down_b in range(4):
        u_down_b_start = u_down_b * RUN_U_DOWN
        w = nl.ndarray((P, 7680), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=w[0:P, 0:1152], src=u_down[0:P, u_down_b_start:u_down_b_start + RUN_U_DOWN])
        acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
        for u_down_k in range(9):
            u_down_k_start = u_down_k * TILE_U_DOWN
            u_down_k_size = min(TILE_U_DOWN, 1100 - u_down_k_start)
            nisa.nc_matmul(
                dst=acc[0:P, 0:100],
                stationary=w[0:u_down_k_size, u_down_k_start:u_down_k_start + TILE_U_DOWN],
                moving=act[0:u_down_k_size, u_down_k, 0, 0:S],
                accumulate=(u_down_k > 0),
            )
        nisa.tensor_copy(dst=td[0:P, u_down_b, 0, 0:S], src=acc[0:P, 0:100], engine=nisa.engine.vector)

    # u_down has room of its own and comes in blocks that shrink
    nisa.dma_copy(dst=w_held[0:P, 0:6, 0:TILE_U_DOWN], src=u_down[0:P, 4608:5376])
    nisa.dma_copy(dst=w_held[0:P, 6:9, 0:TILE_U_DOWN], src=u_down[0:P, 5376:5760])

    # v_down has room of its own and comes in blocks that shrink
    nisa.dma_copy(dst=w_last[0:P, 0:2, 0:TILE_V_DOWN], src=v_down[0:P, 0:256])
    nisa.dma_copy(dst=w_last[0:P, 2:9, 0:TILE_V_DOWN], src=v_down[0:P, 256:1152])
    nisa.dma_copy(dst=w_last[0:P, 9:13, 0:TILE_V_DOWN], src=v_down[0:P, 1152:1664])
    nisa.dma_copy(dst=w_last[0:P, 13:16, 0:TILE_V_DOWN], src=v_down[0:P, 1664:2048])
    nisa.dma_copy(dst=w_last[0:P, 16:18, 0:TILE_V_DOWN], src=v_down[0:P, 2048:2304])
    nisa.dma_copy(dst=w_last[0:P, 18, 0:TILE_V_DOWN], src=v_down[0:P, 2304:2432])
    nisa.dma_copy(dst=w_last[0:P, 19, 0:TILE_V_DOWN], src=v_down[0:P, 2432:2560])
    acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
    for held_k in range(9):
        held_k_start = held_k * 128
        held_k_size = min(TILE_V_GATE_UP, 1100 - held_k_start)
        nisa.nc_matmul(
            dst=acc[0:P, 0:100],
            stationary=w_held[0:held_k_size, held_k, 0:TILE_U_DOWN],
            moving=act[0:held_k_size, held_k, 0, 0:S],
            accumulate=(held_k > 0),
        )
    nisa.tensor_copy(dst=td[0:P, 4, 0, 0:S], src=acc[0:P, 0:100], engine=nisa.engine.vector)

    # last factor moving: rows of y, long enough for the DMA engines
    for v_down_g in range(H // BLOCK_H):
        v_down_g_start = v_down_g * (BLOCK_H // TILE_H)
        v_down_g_start2 = v_down_g * BLOCK_H
        v_down_g_size = min(BLOCK_H, 384 - v_down_g_start2)
        out = nl.ndarray((P, 1, 1, BLOCK_H), dtype=nl.bfloat16, buffer=nl.sbuf)
        for v_down_n in range(min(2, 3 - v_down_g_start)):
            acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
            for v_down_k in range(5):
                nisa.nc_matmul(
                    dst=acc[0:100, 0:128],
                    stationary=td[0:P, v_down_k, 0, 0:S],
                    moving=w_last[0:P, v_down_g * 10 + v_down_n * 5 + v_down_k, 0:TILE_V_DOWN],
                    accumulate=(v_down_k > 0),
                )
            nisa.tensor_copy(
                dst=out[0:S, 0, 0, v_down_n * TILE_H:v_down_n * TILE_H + TILE_H],
                src=acc[0:100, 0:128],
                engine=nisa.engine.vector,
            )
        nisa.dma_copy(
            dst=y[0:S, v_down_g_start2:v_down_g_start2 + v_down_g_size],
            src=out[0:S, 0, 0, 0:v_down_g_size],
        )
    out_tail = nl.ndarray((P, 1, 1, TILE_H), dtype=nl.bfloat16, buffer=nl.sbuf)
    acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
    for tail_k in range(5):
        nisa.nc_matmul(
            dst=acc[0:100, 0:128],
            stationary=td[0:P, tail_k, 0, 0:S],
            moving=w_last[0:P, tail_k + 15, 0:TILE_V_DOWN],
            accumulate=(tail_k > 0),
        )
    nisa.tensor_copy(dst=out_tail[0:S, 0, 0, 0:TILE_H], src=acc[0:100, 0:128], engine=nisa.engine.vector)
    nisa.dma_copy(dst=y[0:S, 384:512], src=out_tail[0:S, 0, 0, 0:TILE_H])
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
        "xT": rng.standard_normal((H, S), dtype=np.float32),
        "u_gate": rng.standard_normal((H, R), dtype=np.float32) / np.float32(np.sqrt(H)),
        "u_up": rng.standard_normal((H, R), dtype=np.float32) / np.float32(np.sqrt(H)),
        "v_gate": rng.standard_normal((R, O), dtype=np.float32) / np.float32(np.sqrt(R)),
        "v_up": rng.standard_normal((R, O), dtype=np.float32) / np.float32(np.sqrt(R)),
        "u_down": rng.standard_normal((O, R), dtype=np.float32) / np.float32(np.sqrt(O)),
        "v_down": rng.standard_normal((R, H), dtype=np.float32) / np.float32(np.sqrt(R)),
    }


def arguments(m):
    """The kernel's arguments from the matrices of inputs()."""
    return [
        m["xT"],
        pack([m["u_gate"], m["u_up"]], 4, P),
        pack([m["v_gate"], m["v_up"]], 5, P),
        pack([m["u_down"]], 9, P),
        pack([m["v_down"]], 5, P),
    ]


def reference(m):
    """The same in float64."""
    m = {name: a.astype(np.float64) for name, a in m.items()}
    x = m["xT"].T
    gate, up = x @ m["u_gate"] @ m["v_gate"], x @ m["u_up"] @ m["v_up"]
    act = gate / (1.0 + np.exp(-gate)) * up
    y = act @ m["u_down"] @ m["v_down"]
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
    os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
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
