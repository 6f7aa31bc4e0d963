"""xuv_fused on one trn1 NeuronCore: y = (x u) v.

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
S = 1000                # rows (tokens)
H = 2048                # hidden size
R = 512                 # rank
O = 4096                # outputs
TILE_S = 128            # one tile along S
TILE_H = 128            # one tile along H
BLOCK_H = 512           # one block of tiles along H
TILE_R = 128            # one tile along R
BLOCK_R = 256           # one block of tiles along R
TILE_O = 512            # one tile along O
BLOCK_O = 1024          # one block of tiles along O


@nki.jit
def xuv_fused(x, u, v):
    """y = (x u) v

    Arguments, in HBM:
        x          [S, H]         bfloat16, activations, one token a row
        u          [H, R]         bfloat16, weights, [inputs, outputs]
        v          [R, O]         bfloat16, weights, [inputs, outputs]
    Returns:
        y          [S, O]         bfloat16, result, one token a row

    SBUF: 44.0 of 176.0 KiB per partition, with every buffer in as many copies as planned.
    PSUM: 8 of 8 banks.
    Instructions: 1,280 with all loops unrolled.
    """
    y = nl.ndarray((S, O), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    i_p128_3d = nl.arange(128)[:, None, None]
    i_t2_3d = nl.arange(2)[None, :, None]
    i_f512_3d = nl.arange(512)[None, None, :]
    i_p104_3d = nl.arange(104)[:, None, None]

    # u stationary and x moving: the product comes out transposed, ready to be stationary next
    xu = nl.ndarray((nl.par_dim(P), R // TILE_R, 4, TILE_S), dtype=nl.bfloat16, buffer=nl.sbuf)
    for rz in nl.affine_range(R // BLOCK_R):
        for rzt in nl.affine_range(BLOCK_R // TILE_R):
            for kz in nl.affine_range(4):
                xu[0:P, rz * (BLOCK_R // TILE_R) + rzt, kz, 0:TILE_S] = nl.zeros(
                    (nl.par_dim(P), TILE_S),
                    dtype=nl.bfloat16,
                )
    for mb in nl.sequential_range(H // BLOCK_H):
        x_blk = nl.ndarray((nl.par_dim(P), BLOCK_H // TILE_H, 4 * TILE_S), dtype=nl.bfloat16, buffer=nl.sbuf)
        for xl in nl.affine_range(BLOCK_H // TILE_H):
            xl_start = mb * BLOCK_H + xl * TILE_H
            x_blk[0:P, xl, 0:512] = nl.load_transpose2d(x[0:512, xl_start:xl_start + TILE_H])
        for rb in nl.affine_range(R // BLOCK_R):
            rb_start = rb * BLOCK_R
            u_blk = nl.ndarray((nl.par_dim(P), BLOCK_H // TILE_H, BLOCK_R), dtype=nl.bfloat16, buffer=nl.sbuf)
            for ul in nl.affine_range(BLOCK_H // TILE_H):
                ul_start = mb * BLOCK_H + ul * TILE_H
                u_blk[0:P, ul, 0:BLOCK_R] = nl.load(
                    u[ul_start:ul_start + TILE_H, rb_start:rb_start + BLOCK_R],
                )
            for k in nl.affine_range(4):
                for r in nl.affine_range(BLOCK_R // TILE_R):
                    acc1 = nl.zeros((nl.par_dim(P), TILE_S), dtype=nl.float32, buffer=nl.psum)
                    for h in nl.affine_range(BLOCK_H // TILE_H):
                        acc1[0:P, 0:TILE_S] += nisa.nc_matmul(
                            u_blk[0:P, h, r * TILE_R:r * TILE_R + TILE_R],
                            x_blk[0:P, h, k * TILE_S:k * TILE_S + TILE_S],
                        )
                    xu[0:P, rb * (BLOCK_R // TILE_R) + r, k, 0:TILE_S] += acc1[0:P, 0:TILE_S]

    # the strip stays in SBUF for every block of output columns
    for nb in nl.affine_range(O // BLOCK_O):
        nb_start = nb * BLOCK_O
        out = nl.ndarray((nl.par_dim(P), 4, BLOCK_O // TILE_O, TILE_O), dtype=nl.bfloat16, buffer=nl.sbuf)
        for kz in nl.affine_range(4):
            for nz in nl.affine_range(BLOCK_O // TILE_O):
                out[0:P, kz, nz, 0:TILE_O] = nl.zeros((nl.par_dim(P), TILE_O), dtype=nl.bfloat16)
        for rb in nl.sequential_range(R // BLOCK_R):
            v_blk = nl.ndarray((nl.par_dim(P), BLOCK_R // TILE_R, BLOCK_O), dtype=nl.bfloat16, buffer=nl.sbuf)
            for vl in nl.affine_range(BLOCK_R // TILE_R):
                vl_start = rb * BLOCK_R + vl * TILE_R
                v_blk[0:P, vl, 0:BLOCK_O] = nl.load(
                    v[vl_start:vl_start + TILE_R, nb_start:nb_start + BLOCK_O],
                )
            for k in nl.affine_range(4):
                for n in nl.affine_range(BLOCK_O // TILE_O):
                    acc2 = nl.zeros((nl.par_dim(P), TILE_O), dtype=nl.float32, buffer=nl.psum)
                    for r in nl.affine_range(BLOCK_R // TILE_R):
                        acc2[0:P, 0:TILE_O] += nisa.nc_matmul(
                            xu[0:P, rb * (BLOCK_R // TILE_R) + r, k, 0:TILE_S],
                            v_blk[0:P, r, n * TILE_O:n * TILE_O + TILE_O],
                        )
                    out[0:P, k, n, 0:TILE_O] += acc2[0:P, 0:TILE_O]
        for ks in nl.affine_range(4):
            ks_start = ks * TILE_S
            nl.store(
                y[ks_start + i_p128_3d, nb_start + i_t2_3d * 512 + i_f512_3d],
                value=out[i_p128_3d, ks, i_t2_3d, i_f512_3d],
            )
    xu = nl.ndarray((nl.par_dim(P), R // TILE_R, 4, TILE_S), dtype=nl.bfloat16, buffer=nl.sbuf)
    for rz in nl.affine_range(R // BLOCK_R):
        for rzt in nl.affine_range(BLOCK_R // TILE_R):
            for kz in nl.affine_range(3):
                xu[0:P, rz * (BLOCK_R // TILE_R) + rzt, kz, 0:TILE_S] = nl.zeros(
                    (nl.par_dim(P), TILE_S),
                    dtype=nl.bfloat16,
                )
            xu[0:P, rz * (BLOCK_R // TILE_R) + rzt, 3, 0:104] = nl.zeros(
                (nl.par_dim(P), 104),
                dtype=nl.bfloat16,
            )
    for mb in nl.sequential_range(H // BLOCK_H):
        x_blk = nl.ndarray((nl.par_dim(P), BLOCK_H // TILE_H, 4 * TILE_S), dtype=nl.bfloat16, buffer=nl.sbuf)
        for xl in nl.affine_range(BLOCK_H // TILE_H):
            xl_start = mb * BLOCK_H + xl * TILE_H
            x_blk[0:P, xl, 0:488] = nl.load_transpose2d(x[512:1000, xl_start:xl_start + TILE_H])
        for rb in nl.affine_range(R // BLOCK_R):
            rb_start = rb * BLOCK_R
            u_blk = nl.ndarray((nl.par_dim(P), BLOCK_H // TILE_H, BLOCK_R), dtype=nl.bfloat16, buffer=nl.sbuf)
            for ul in nl.affine_range(BLOCK_H // TILE_H):
                ul_start = mb * BLOCK_H + ul * TILE_H
                u_blk[0:P, ul, 0:BLOCK_R] = nl.load(
                    u[ul_start:ul_start + TILE_H, rb_start:rb_start + BLOCK_R],
                )
            for k in nl.affine_range(3):
                for r in nl.affine_range(BLOCK_R // TILE_R):
                    acc1 = nl.zeros((nl.par_dim(P), TILE_S), dtype=nl.float32, buffer=nl.psum)
                    for h in nl.affine_range(BLOCK_H // TILE_H):
                        acc1[0:P, 0:TILE_S] += nisa.nc_matmul(
                            u_blk[0:P, h, r * TILE_R:r * TILE_R + TILE_R],
                            x_blk[0:P, h, k * TILE_S:k * TILE_S + TILE_S],
                        )
                    xu[0:P, rb * (BLOCK_R // TILE_R) + r, k, 0:TILE_S] += acc1[0:P, 0:TILE_S]
            for r in nl.affine_range(BLOCK_R // TILE_R):
                acc1 = nl.zeros((nl.par_dim(P), TILE_S), dtype=nl.float32, buffer=nl.psum)
                for h in nl.affine_range(BLOCK_H // TILE_H):
                    acc1[0:P, 0:104] += nisa.nc_matmul(
                        u_blk[0:P, h, r * TILE_R:r * TILE_R + TILE_R],
                        x_blk[0:P, h, 384:488],
                    )
                xu[0:P, rb * (BLOCK_R // TILE_R) + r, 3, 0:104] += acc1[0:P, 0:104]
    for nb in nl.affine_range(O // BLOCK_O):
        nb_start = nb * BLOCK_O
        out = nl.ndarray((nl.par_dim(P), 4, BLOCK_O // TILE_O, TILE_O), dtype=nl.bfloat16, buffer=nl.sbuf)
        for kz in nl.affine_range(3):
            for nz in nl.affine_range(BLOCK_O // TILE_O):
                out[0:P, kz, nz, 0:TILE_O] = nl.zeros((nl.par_dim(P), TILE_O), dtype=nl.bfloat16)
        for nz in nl.affine_range(BLOCK_O // TILE_O):
            out[0:104, 3, nz, 0:TILE_O] = nl.zeros((nl.par_dim(104), TILE_O), dtype=nl.bfloat16)
        for rb in nl.sequential_range(R // BLOCK_R):
            v_blk = nl.ndarray((nl.par_dim(P), BLOCK_R // TILE_R, BLOCK_O), dtype=nl.bfloat16, buffer=nl.sbuf)
            for vl in nl.affine_range(BLOCK_R // TILE_R):
                vl_start = rb * BLOCK_R + vl * TILE_R
                v_blk[0:P, vl, 0:BLOCK_O] = nl.load(
                    v[vl_start:vl_start + TILE_R, nb_start:nb_start + BLOCK_O],
                )
            for k in nl.affine_range(3):
                for n in nl.affine_range(BLOCK_O // TILE_O):
                    acc2 = nl.zeros((nl.par_dim(P), TILE_O), dtype=nl.float32, buffer=nl.psum)
                    for r in nl.affine_range(BLOCK_R // TILE_R):
                        acc2[0:P, 0:TILE_O] += nisa.nc_matmul(
                            xu[0:P, rb * (BLOCK_R // TILE_R) + r, k, 0:TILE_S],
                            v_blk[0:P, r, n * TILE_O:n * TILE_O + TILE_O],
                        )
                    out[0:P, k, n, 0:TILE_O] += acc2[0:P, 0:TILE_O]
            for n in nl.affine_range(BLOCK_O // TILE_O):
                acc2 = nl.zeros((nl.par_dim(P), TILE_O), dtype=nl.float32, buffer=nl.psum)
                for r in nl.affine_range(BLOCK_R // TILE_R):
                    acc2[0:104, 0:TILE_O] += nisa.nc_matmul(
                        xu[0:P, rb * (BLOCK_R // TILE_R) + r, 3, 0:104],
                        v_blk[0:P, r, n * TILE_O:n * TILE_O + TILE_O],
                    )
                out[0:104, 3, n, 0:TILE_O] += acc2[0:104, 0:TILE_O]
        for ks in nl.affine_range(3):
            ks_start = ks * TILE_S
            nl.store(
                y[ks_start + 512 + i_p128_3d, nb_start + i_t2_3d * 512 + i_f512_3d],
                value=out[i_p128_3d, ks, i_t2_3d, i_f512_3d],
            )
        nl.store(
            y[896 + i_p104_3d, nb_start + i_t2_3d * 512 + i_f512_3d],
            value=out[i_p104_3d, 3, i_t2_3d, i_f512_3d],
        )
    return y


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
        m["u"],
        m["v"],
    ]


def reference(m):
    """The same in float64."""
    m = {name: a.astype(np.float64) for name, a in m.items()}
    x = m["x"]
    y = x @ m["u"] @ m["v"]
    return y


def on_device(args, iters):
    """Runs on a NeuronCore; returns the result and the median latency in us."""
    y = nki.baremetal(xuv_fused)(*args)
    timed = nki.benchmark(warmup=5, iters=iters)(xuv_fused)
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
        y = nki.simulate_kernel(xuv_fused, *args)
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
