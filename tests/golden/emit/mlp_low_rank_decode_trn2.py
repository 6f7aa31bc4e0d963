"""mlp on one trn2 NeuronCore: y = (silu(x u_gate v_gate) * (x u_up v_up)) u_down v_down.

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
H = 2048                # hidden size
R = 768                 # rank
O = 8192                # intermediate size
TILE_H = 128            # one tile along H
BLOCK_H = 256           # one block of tiles along H
STRIP_H = 768           # one strip of blocks along H
TILE_U_GATE_UP = 128    # columns of one tile of U_GATE_UP
RUN_U_GATE_UP = 4096    # columns of one run of tiles of U_GATE_UP
SPAN_U_GATE_UP = 8192   # columns of one load of U_GATE_UP
TILE_V_GATE_UP = 128    # columns of one tile of V_GATE_UP
RUN_V_GATE_UP = 1536    # columns of one run of tiles of V_GATE_UP
SPAN_V_GATE_UP = 7680   # columns of one load of V_GATE_UP
TILE_U_DOWN = 128       # columns of one tile of U_DOWN
RUN_U_DOWN = 8192       # columns of one load of U_DOWN
TILE_V_DOWN = 256       # columns of one tile of V_DOWN
RUN_V_DOWN = 1536       # columns of one run of tiles of V_DOWN
SPAN_V_DOWN = 4608      # columns of one load of V_DOWN


@nki.jit
def mlp(xT, u_gate_up, v_gate_up, u_down, v_down):
    """y = (silu(x u_gate v_gate) * (x u_up v_up)) u_down v_down

    Arguments, in HBM:
        xT         [H, 1]         bfloat16, activations transposed, one token a column
        u_gate_up  [128, 24576]   bfloat16, two weights in tiles, see pack()
        v_gate_up  [128, 98304]   bfloat16, two weights in tiles, see pack()
        u_down     [128, 49152]   bfloat16, weights in tiles, see pack()
        v_down     [128, 12288]   bfloat16, weights in tiles, see pack()
    Returns:
        y          [1, H]         bfloat16, result, one token a row

    SBUF: 74.2 of 208.0 KiB per partition, with every buffer in as many copies as planned.
    PSUM: 8 of 8 banks.
    Instructions: 1,597 with all loops unrolled.
    """
    y = nl.ndarray((1, H), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    t = nl.ndarray((P, 12, 1, 1), dtype=nl.bfloat16, buffer=nl.sbuf)
    td = nl.ndarray((P, 6, 1, 1), dtype=nl.bfloat16, buffer=nl.sbuf)
    w_tail = nl.ndarray((P, 12, 256), dtype=nl.bfloat16, buffer=nl.sbuf)

    # first factors stationary, x moving: the products come out transposed, as the next ones want
    # them
    xt = nl.ndarray((P, H // TILE_H, 1, 1), dtype=nl.bfloat16, buffer=nl.sbuf)
    for xh in range(H // TILE_H):
        xh_start = xh * TILE_H
        nisa.dma_copy(dst=xt[0:P, xh, 0, 0:1], src=xT[xh_start:xh_start + TILE_H, 0:1])
    for u_gate_up_b in range(3):
        u_gate_up_b_start = u_gate_up_b * SPAN_U_GATE_UP
        w = nl.ndarray((P, 8192), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=w, src=u_gate_up[0:P, u_gate_up_b_start:u_gate_up_b_start + SPAN_U_GATE_UP])
        for u_gate_up_n in range(2):
            acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
            for u_gate_up_k in range(16):
                u_gate_up_k_at = u_gate_up_n * RUN_U_GATE_UP + u_gate_up_k * TILE_U_GATE_UP
                nisa.nc_matmul(
                    dst=acc[0:P, 0:1],
                    stationary=w[0:P, u_gate_up_k_at:u_gate_up_k_at + TILE_U_GATE_UP],
                    moving=xt[0:P, u_gate_up_k, 0, 0:1],
                    accumulate=(u_gate_up_k > 0),
                )
            nisa.tensor_copy(
                dst=t[0:P, u_gate_up_b * 2 + u_gate_up_n, 0, 0:1],
                src=acc[0:P, 0:1],
                engine=nisa.engine.vector,
            )
            acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
            for u_gate_up_k2 in range(16):
                u_gate_up_k2_at = u_gate_up_n * RUN_U_GATE_UP + u_gate_up_k2 * TILE_U_GATE_UP
                nisa.nc_matmul(
                    dst=acc[0:P, 0:1],
                    stationary=w[0:P, u_gate_up_k2_at + 2048:u_gate_up_k2_at + 2048 + TILE_U_GATE_UP],
                    moving=xt[0:P, u_gate_up_k2, 0, 0:1],
                    accumulate=(u_gate_up_k2 > 0),
                )
            nisa.tensor_copy(
                dst=t[0:P, u_gate_up_b * 2 + u_gate_up_n + 6, 0, 0:1],
                src=acc[0:P, 0:1],
                engine=nisa.engine.vector,
            )

    # gate and up of one tile follow each other; silu and product on the way out of PSUM, never to
    # HBM
    act = nl.ndarray((P, 64, 1, 1), dtype=nl.bfloat16, buffer=nl.sbuf)
    for v_gate_up_b in range(13):
        v_gate_up_b_start = v_gate_up_b * SPAN_V_GATE_UP
        v_gate_up_b_size = min(SPAN_V_GATE_UP, 98304 - v_gate_up_b_start)
        v_gate_up_b_start2 = v_gate_up_b * 5
        w = nl.ndarray((P, 8192), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(
            dst=w[0:P, 0:v_gate_up_b_size],
            src=v_gate_up[0:P, v_gate_up_b_start:v_gate_up_b_start + v_gate_up_b_size],
        )
        for v_gate_up_n in range(min(5, 64 - v_gate_up_b_start2)):
            acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
            for v_gate_up_k in range(6):
                v_gate_up_k_at = v_gate_up_n * RUN_V_GATE_UP + v_gate_up_k * TILE_V_GATE_UP
                nisa.nc_matmul(
                    dst=acc[0:P, 0:1],
                    stationary=w[0:P, v_gate_up_k_at:v_gate_up_k_at + TILE_V_GATE_UP],
                    moving=t[0:P, v_gate_up_k, 0, 0:1],
                    accumulate=(v_gate_up_k > 0),
                )
            silu = nl.ndarray((P, 1, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=silu[0:P, 0, 0:1], op=nl.silu, data=acc[0:P, 0:1])
            acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
            for v_gate_up_k2 in range(6):
                v_gate_up_k2_at = v_gate_up_n * RUN_V_GATE_UP + v_gate_up_k2 * TILE_V_GATE_UP
                nisa.nc_matmul(
                    dst=acc[0:P, 0:1],
                    stationary=w[0:P, v_gate_up_k2_at + 768:v_gate_up_k2_at + 768 + TILE_V_GATE_UP],
                    moving=t[0:P, v_gate_up_k2 + 6, 0, 0:1],
                    accumulate=(v_gate_up_k2 > 0),
                )
            nisa.tensor_tensor(
                dst=act[0:P, v_gate_up_b_start2 + v_gate_up_n, 0, 0:1],
                data1=acc[0:P, 0:1],
                data2=silu[0:P, 0, 0:1],
                op=nl.multiply,
                engine=nisa.engine.vector,
            )

    # down projection of what is on chip, contracted over the intermediate features
    for u_down_b in range(6):
        u_down_b_start = u_down_b * RUN_U_DOWN
        w_last = nl.ndarray((P, 8192), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=w_last, src=u_down[0:P, u_down_b_start:u_down_b_start + RUN_U_DOWN])
        acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
        for u_down_k in range(64):
            nisa.nc_matmul(
                dst=acc[0:P, 0:1],
                stationary=w_last[0:P, u_down_k * TILE_U_DOWN:u_down_k * TILE_U_DOWN + TILE_U_DOWN],
                moving=act[0:P, u_down_k, 0, 0:1],
                accumulate=(u_down_k > 0),
            )
        nisa.tensor_copy(dst=td[0:P, u_down_b, 0, 0:1], src=acc[0:P, 0:1], engine=nisa.engine.vector)

    # last factor moving: rows of y, long enough for the DMA engines
    for v_down_g in range(2):
        v_down_g_start = v_down_g * (STRIP_H // BLOCK_H)
        v_down_g_start2 = v_down_g * STRIP_H
        v_down_g_size = min(STRIP_H, 1280 - v_down_g_start2)
        out = nl.ndarray((P, 1, 1, 768), dtype=nl.bfloat16, buffer=nl.sbuf)
        for v_down_b in range(min(3, 5 - v_down_g_start)):
            v_down_b_start = v_down_g * SPAN_V_DOWN + v_down_b * RUN_V_DOWN
            w_last = nl.ndarray((P, 8192), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.dma_copy(
                dst=w_last[0:P, 0:1536],
                src=v_down[0:P, v_down_b_start:v_down_b_start + RUN_V_DOWN],
            )
            acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
            for v_down_k in range(6):
                nisa.nc_matmul(
                    dst=acc[0:1, 0:256],
                    stationary=td[0:P, v_down_k, 0, 0:1],
                    moving=w_last[0:P, v_down_k * TILE_V_DOWN:v_down_k * TILE_V_DOWN + TILE_V_DOWN],
                    accumulate=(v_down_k > 0),
                )
            nisa.tensor_copy(
                dst=out[0:1, 0, 0, v_down_b * TILE_V_DOWN:v_down_b * TILE_V_DOWN + TILE_V_DOWN],
                src=acc[0:1, 0:256],
                engine=nisa.engine.scalar,
            )
        nisa.dma_copy(
            dst=y[0:1, v_down_g_start2:v_down_g_start2 + v_down_g_size],
            src=out[0:1, 0, 0, 0:v_down_g_size],
        )
    out = nl.ndarray((P, 1, 1, 768), dtype=nl.bfloat16, buffer=nl.sbuf)
    w_last = nl.ndarray((P, 8192), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=w_last[0:P, 0:1536], src=v_down[0:P, 7680:9216])
    for tail_t in range(2):
        tail_t_start = tail_t * RUN_V_DOWN
        nisa.dma_copy(
            dst=w_tail[0:P, tail_t * 6:tail_t * 6 + 6, 0:TILE_V_DOWN],
            src=v_down[0:P, tail_t_start + 9216:tail_t_start + 9216 + RUN_V_DOWN],
        )
    acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
    for before_tail_k in range(6):
        nisa.nc_matmul(
            dst=acc[0:1, 0:256],
            stationary=td[0:P, before_tail_k, 0, 0:1],
            moving=w_last[0:P, before_tail_k * 256:before_tail_k * 256 + 256],
            accumulate=(before_tail_k > 0),
        )
    nisa.tensor_copy(dst=out[0:1, 0, 0, 0:256], src=acc[0:1, 0:256], engine=nisa.engine.scalar)
    nisa.dma_copy(dst=y[0:1, 1280:1536], src=out[0:1, 0, 0, 0:256])
    for tail_g in range(2):
        tail_g_start = tail_g * BLOCK_H
        out_tail = nl.ndarray((P, 1, 1, BLOCK_H), dtype=nl.bfloat16, buffer=nl.sbuf)
        acc = nl.ndarray((P, 512), dtype=nl.float32, buffer=nl.psum)
        for tail_k in range(6):
            nisa.nc_matmul(
                dst=acc[0:1, 0:256],
                stationary=td[0:P, tail_k, 0, 0:1],
                moving=w_tail[0:P, tail_g * 6 + tail_k, 0:TILE_V_DOWN],
                accumulate=(tail_k > 0),
            )
        nisa.tensor_copy(dst=out_tail[0:1, 0, 0, 0:BLOCK_H], src=acc[0:1, 0:256], engine=nisa.engine.vector)
        nisa.dma_copy(
            dst=y[0:1, tail_g_start + 1536:tail_g_start + 1536 + BLOCK_H],
            src=out_tail[0:1, 0, 0, 0:BLOCK_H],
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
        "xT": rng.standard_normal((H, 1), dtype=np.float32),
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
        pack([m["u_gate"], m["u_up"]], 16, P),
        pack([m["v_gate"], m["v_up"]], 6, P),
        pack([m["u_down"]], 64, P),
        pack([m["v_down"]], 6, 256),
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
