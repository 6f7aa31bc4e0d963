"""mlp on one trn1 NeuronCore: y = (silu(x u_shared v_gate) * (x u_shared v_up)) u_down v_down.

Legacy NKI (neuronxcc.nki), Neuron SDK 2.23 to 2.26.
Printed by neuronmlp.
Checked against a simulation of the tile program; not yet run on hardware.
"""
import argparse

import ml_dtypes
import numpy as np

from neuronxcc import nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl

P = 128                 # partitions of SBUF and PSUM
S = 300                 # rows (tokens)
H = 1000                # hidden size
R = 300                 # rank
O = 1500                # intermediate size
TILE_S = 128            # one tile along S
TILE_H = 128            # one tile along H
TILE_U_SHARED = 100     # columns of one tile of U_SHARED
RUN_U_SHARED = 800      # columns of one load of U_SHARED
TILE_V_GATE_UP = 128    # columns of one tile of V_GATE_UP
RUN_V_GATE_UP = 768     # columns of one run of tiles of V_GATE_UP
SPAN_V_GATE_UP = 3072   # columns of one load of V_GATE_UP
TILE_U_DOWN = 100       # columns of one tile of U_DOWN
RUN_U_DOWN = 400        # columns of one run of tiles of U_DOWN
SPAN_U_DOWN = 1200      # columns of one load of U_DOWN
TILE_V_DOWN = 512       # columns of one tile of V_DOWN


@nki.jit
def mlp(xT, u_shared, v_gate_up, u_down, v_down):
    """y = (silu(x u_shared v_gate) * (x u_shared v_up)) u_down v_down

    Arguments, in HBM:
        xT         [H, S]         bfloat16, activations transposed, one token a column
        u_shared   [128, 2400]    bfloat16, weights in tiles, see pack()
        v_gate_up  [100, 9216]    bfloat16, two weights in tiles, see pack()
        u_down     [128, 3600]    bfloat16, weights in tiles, see pack()
        v_down     [100, 3072]    bfloat16, weights in tiles, see pack()
    Returns:
        y          [S, H]         bfloat16, result, one token a row

    SBUF: 39.2 of 176.0 KiB per partition, with every buffer in as many copies as planned.
    PSUM: 8 of 8 banks.
    Instructions: 211 with all loops unrolled.
    """
    y = nl.ndarray((S, H), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    t = nl.ndarray((nl.par_dim(P), 3, 1, S), dtype=nl.bfloat16, buffer=nl.sbuf)
    td = nl.ndarray((nl.par_dim(P), 3, 1, S), dtype=nl.bfloat16, buffer=nl.sbuf)

    # first factors stationary, x moving: the products come out transposed, as the next ones want
    # them
    xt = nl.ndarray((nl.par_dim(P), (H + TILE_H - 1) // TILE_H, 1, S), dtype=nl.bfloat16, buffer=nl.sbuf)
    for xh in nl.affine_range(7):
        xh_start = xh * TILE_H
        xt[0:P, xh, 0, 0:S] = nl.load(xT[xh_start:xh_start + TILE_H, 0:S])
    xt[0:104, 7, 0, 0:S] = nl.load(xT[896:1000, 0:S])
    w = nl.ndarray((nl.par_dim(P), 3072), dtype=nl.bfloat16, buffer=nl.sbuf)
    w[0:P, 0:2400] = nl.load(u_shared[0:P, 0:2400])
    for u_shared_n in nl.affine_range(3):
        acc = nl.zeros((nl.par_dim(P), 512), dtype=nl.float32, buffer=nl.psum)
        for u_shared_k in nl.affine_range(7):
            u_shared_k_at = u_shared_n * RUN_U_SHARED + u_shared_k * TILE_U_SHARED
            acc[0:100, 0:S] += nisa.nc_matmul(
                w[0:P, u_shared_k_at:u_shared_k_at + TILE_U_SHARED],
                xt[0:P, u_shared_k, 0, 0:S],
            )
        acc[0:100, 0:S] += nisa.nc_matmul(
            w[0:104, u_shared_n * RUN_U_SHARED + 700:u_shared_n * RUN_U_SHARED + 700 + TILE_U_SHARED],
            xt[0:104, 7, 0, 0:S],
        )
        t[0:100, u_shared_n, 0, 0:S] = nl.copy(acc[0:100, 0:S], dtype=nl.bfloat16)

    # gate and up of one tile follow each other; silu and product on the way out of PSUM, never to
    # HBM
    for ac in nl.static_range(2):
        ac_start = ac * SPAN_V_GATE_UP
        ac_start2 = ac * SPAN_U_DOWN
        act = nl.ndarray((nl.par_dim(P), 4, 1, S), dtype=nl.bfloat16, buffer=nl.sbuf)
        w = nl.ndarray((nl.par_dim(P), 3072), dtype=nl.bfloat16, buffer=nl.sbuf)
        w[0:100, 0:3072] = nl.load(v_gate_up[0:100, ac_start:ac_start + SPAN_V_GATE_UP])
        for v_gate_up_n in nl.affine_range(4):
            acc = nl.zeros((nl.par_dim(P), 512), dtype=nl.float32, buffer=nl.psum)
            for v_gate_up_k in nl.affine_range(3):
                v_gate_up_k_at = v_gate_up_n * RUN_V_GATE_UP + v_gate_up_k * TILE_V_GATE_UP
                acc[0:P, 0:S] += nisa.nc_matmul(
                    w[0:100, v_gate_up_k_at:v_gate_up_k_at + TILE_V_GATE_UP],
                    t[0:100, v_gate_up_k, 0, 0:S],
                )
            silu = nl.ndarray((nl.par_dim(P), 1, S), dtype=nl.float32, buffer=nl.sbuf)
            silu[0:P, 0, 0:S] = nisa.activation(op=nl.silu, data=acc[0:P, 0:S], dtype=nl.float32)
            acc = nl.zeros((nl.par_dim(P), 512), dtype=nl.float32, buffer=nl.psum)
            for v_gate_up_k2 in nl.affine_range(3):
                v_gate_up_k2_at = v_gate_up_n * RUN_V_GATE_UP + v_gate_up_k2 * TILE_V_GATE_UP
                acc[0:P, 0:S] += nisa.nc_matmul(
                    w[0:100, v_gate_up_k2_at + 384:v_gate_up_k2_at + 384 + TILE_V_GATE_UP],
                    t[0:100, v_gate_up_k2, 0, 0:S],
                )
            act[0:P, v_gate_up_n, 0, 0:S] = nl.multiply(acc[0:P, 0:S], silu[0:P, 0, 0:S], dtype=nl.bfloat16)

        # down projection of what is on chip, contracted over the intermediate features
        w = nl.ndarray((nl.par_dim(P), 3072), dtype=nl.bfloat16, buffer=nl.sbuf)
        w[0:P, 0:1200] = nl.load(u_down[0:P, ac_start2:ac_start2 + SPAN_U_DOWN])
        for u_down_n in nl.affine_range(3):
            acc = nl.zeros((nl.par_dim(P), 512), dtype=nl.float32, buffer=nl.psum)
            for u_down_k in nl.affine_range(4):
                u_down_k_at = u_down_n * RUN_U_DOWN + u_down_k * TILE_U_DOWN
                acc[0:100, 0:S] += nisa.nc_matmul(
                    w[0:P, u_down_k_at:u_down_k_at + TILE_U_DOWN],
                    act[0:P, u_down_k, 0, 0:S],
                )
            if ac == 0:
                td[0:100, u_down_n, 0, 0:S] = nl.copy(acc[0:100, 0:S], dtype=nl.bfloat16)
            else:
                td[0:100, u_down_n, 0, 0:S] += acc[0:100, 0:S]
    act = nl.ndarray((nl.par_dim(P), 4, 1, S), dtype=nl.bfloat16, buffer=nl.sbuf)
    w = nl.ndarray((nl.par_dim(P), 3072), dtype=nl.bfloat16, buffer=nl.sbuf)
    w[0:100, 0:3072] = nl.load(v_gate_up[0:100, 6144:9216])
    for v_gate_up_n in nl.affine_range(3):
        acc = nl.zeros((nl.par_dim(P), 512), dtype=nl.float32, buffer=nl.psum)
        for v_gate_up_k in nl.affine_range(3):
            v_gate_up_k_at = v_gate_up_n * RUN_V_GATE_UP + v_gate_up_k * TILE_V_GATE_UP
            acc[0:P, 0:S] += nisa.nc_matmul(
                w[0:100, v_gate_up_k_at:v_gate_up_k_at + TILE_V_GATE_UP],
                t[0:100, v_gate_up_k, 0, 0:S],
            )
        silu = nl.ndarray((nl.par_dim(P), 1, S), dtype=nl.float32, buffer=nl.sbuf)
        silu[0:P, 0, 0:S] = nisa.activation(op=nl.silu, data=acc[0:P, 0:S], dtype=nl.float32)
        acc = nl.zeros((nl.par_dim(P), 512), dtype=nl.float32, buffer=nl.psum)
        for v_gate_up_k2 in nl.affine_range(3):
            v_gate_up_k2_at = v_gate_up_n * RUN_V_GATE_UP + v_gate_up_k2 * TILE_V_GATE_UP
            acc[0:P, 0:S] += nisa.nc_matmul(
                w[0:100, v_gate_up_k2_at + 384:v_gate_up_k2_at + 384 + TILE_V_GATE_UP],
                t[0:100, v_gate_up_k2, 0, 0:S],
            )
        act[0:P, v_gate_up_n, 0, 0:S] = nl.multiply(acc[0:P, 0:S], silu[0:P, 0, 0:S], dtype=nl.bfloat16)
    acc = nl.zeros((nl.par_dim(P), 512), dtype=nl.float32, buffer=nl.psum)
    for v_gate_up_k in nl.affine_range(3):
        acc[0:92, 0:S] += nisa.nc_matmul(
            w[0:100, v_gate_up_k * TILE_V_GATE_UP + 2304:v_gate_up_k * TILE_V_GATE_UP + 2304 + 92],
            t[0:100, v_gate_up_k, 0, 0:S],
        )
    silu = nl.ndarray((nl.par_dim(P), 1, S), dtype=nl.float32, buffer=nl.sbuf)
    silu[0:92, 0, 0:S] = nisa.activation(op=nl.silu, data=acc[0:92, 0:S], dtype=nl.float32)
    acc = nl.zeros((nl.par_dim(P), 512), dtype=nl.float32, buffer=nl.psum)
    for v_gate_up_k2 in nl.affine_range(3):
        acc[0:92, 0:S] += nisa.nc_matmul(
            w[0:100, v_gate_up_k2 * TILE_V_GATE_UP + 2688:v_gate_up_k2 * TILE_V_GATE_UP + 2688 + 92],
            t[0:100, v_gate_up_k2, 0, 0:S],
        )
    act[0:92, 3, 0, 0:S] = nl.multiply(acc[0:92, 0:S], silu[0:92, 0, 0:S], dtype=nl.bfloat16)
    w = nl.ndarray((nl.par_dim(P), 3072), dtype=nl.bfloat16, buffer=nl.sbuf)
    w[0:P, 0:1200] = nl.load(u_down[0:P, 2400:3600])
    for u_down_n in nl.affine_range(3):
        acc = nl.zeros((nl.par_dim(P), 512), dtype=nl.float32, buffer=nl.psum)
        for u_down_k in nl.affine_range(3):
            u_down_k_at = u_down_n * RUN_U_DOWN + u_down_k * TILE_U_DOWN
            acc[0:100, 0:S] += nisa.nc_matmul(
                w[0:P, u_down_k_at:u_down_k_at + TILE_U_DOWN],
                act[0:P, u_down_k, 0, 0:S],
            )
        acc[0:100, 0:S] += nisa.nc_matmul(
            w[0:92, u_down_n * RUN_U_DOWN + 300:u_down_n * RUN_U_DOWN + 300 + TILE_U_DOWN],
            act[0:92, 3, 0, 0:S],
        )
        td[0:100, u_down_n, 0, 0:S] += acc[0:100, 0:S]

    # last factor moving: rows of y, long enough for the DMA engines
    out = nl.ndarray((nl.par_dim(P), 1, (S + TILE_S - 1) // TILE_S, 1024), dtype=nl.bfloat16, buffer=nl.sbuf)
    w = nl.ndarray((nl.par_dim(P), 3072), dtype=nl.bfloat16, buffer=nl.sbuf)
    w[0:100, 0:3072] = nl.load(v_down[0:100, 0:3072])
    for v_down_q in nl.affine_range(2):
        acc = nl.zeros((nl.par_dim(P), 512), dtype=nl.float32, buffer=nl.psum)
        for v_down_k in nl.affine_range(3):
            acc[0:P, 0:512] += nisa.nc_matmul(
                td[0:100, v_down_k, 0, v_down_q * TILE_S:v_down_q * TILE_S + TILE_S],
                w[0:100, v_down_k * TILE_V_DOWN:v_down_k * TILE_V_DOWN + TILE_V_DOWN],
            )
        out[0:P, 0, v_down_q, 0:512] = nisa.activation(op=nl.copy, data=acc[0:P, 0:512], dtype=nl.bfloat16)
    acc = nl.zeros((nl.par_dim(P), 512), dtype=nl.float32, buffer=nl.psum)
    for v_down_k in nl.affine_range(3):
        acc[0:44, 0:512] += nisa.nc_matmul(
            td[0:100, v_down_k, 0, 256:300],
            w[0:100, v_down_k * TILE_V_DOWN:v_down_k * TILE_V_DOWN + TILE_V_DOWN],
        )
    out[0:44, 0, 2, 0:512] = nisa.activation(op=nl.copy, data=acc[0:44, 0:512], dtype=nl.bfloat16)
    for v_down_q in nl.affine_range(2):
        acc = nl.zeros((nl.par_dim(P), 512), dtype=nl.float32, buffer=nl.psum)
        for v_down_k in nl.affine_range(3):
            acc[0:P, 0:488] += nisa.nc_matmul(
                td[0:100, v_down_k, 0, v_down_q * TILE_S:v_down_q * TILE_S + TILE_S],
                w[0:100, v_down_k * TILE_V_DOWN + 1536:v_down_k * TILE_V_DOWN + 1536 + 488],
            )
        out[0:P, 0, v_down_q, 512:1000] = nisa.activation(op=nl.copy, data=acc[0:P, 0:488], dtype=nl.bfloat16)
    acc = nl.zeros((nl.par_dim(P), 512), dtype=nl.float32, buffer=nl.psum)
    for v_down_k in nl.affine_range(3):
        acc[0:44, 0:488] += nisa.nc_matmul(
            td[0:100, v_down_k, 0, 256:300],
            w[0:100, v_down_k * TILE_V_DOWN + 1536:v_down_k * TILE_V_DOWN + 1536 + 488],
        )
    out[0:44, 0, 2, 512:1000] = nisa.activation(op=nl.copy, data=acc[0:44, 0:488], dtype=nl.bfloat16)
    for v_down_sq in nl.affine_range(2):
        v_down_sq_start = v_down_sq * TILE_S
        nl.store(y[v_down_sq_start:v_down_sq_start + TILE_S, 0:H], value=out[0:P, 0, v_down_sq, 0:1000])
    nl.store(y[256:300, 0:H], value=out[0:44, 0, 2, 0:1000])
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
        "u_shared": rng.standard_normal((H, R), dtype=np.float32) / np.float32(np.sqrt(H)),
        "v_gate": rng.standard_normal((R, O), dtype=np.float32) / np.float32(np.sqrt(R)),
        "v_up": rng.standard_normal((R, O), dtype=np.float32) / np.float32(np.sqrt(R)),
        "u_down": rng.standard_normal((O, R), dtype=np.float32) / np.float32(np.sqrt(O)),
        "v_down": rng.standard_normal((R, H), dtype=np.float32) / np.float32(np.sqrt(R)),
    }


def arguments(m):
    """The kernel's arguments from the matrices of inputs()."""
    return [
        m["xT"],
        pack([m["u_shared"]], 8, 100),
        pack([m["v_gate"], m["v_up"]], 3, P, (100, 100)),
        pack([m["u_down"]], 4, 100),
        pack([m["v_down"]], 3, 512, (100,)),
    ]


def reference(m):
    """The same in float64."""
    m = {name: a.astype(np.float64) for name, a in m.items()}
    x = m["xT"].T
    basis = x @ m["u_shared"]
    gate, up = basis @ m["v_gate"], basis @ m["v_up"]
    act = gate / (1.0 + np.exp(-gate)) * up
    y = act @ m["u_down"] @ m["v_down"]
    return y


def on_device(args, iters):
    """Runs on a NeuronCore; returns the result and the median latency in us."""
    y = nki.baremetal(mlp)(*args)
    timed = nki.benchmark(warmup=5, iters=iters)(mlp)
    timed(*args)
    return y, timed.benchmark_result.nc_latency.get_latency_percentile(50)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="use NKI's CPU simulator, not a device")
    parser.add_argument("--iters", type=int, default=20, help="timed calls")
    options = parser.parse_args()
    dtype = ml_dtypes.bfloat16
    m = {name: a.astype(dtype).astype(np.float32) for name, a in inputs().items()}
    args = [a.astype(dtype) for a in arguments(m)]
    if options.simulate:
        y = nki.simulate_kernel(mlp, *args)
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
