"""xw_opt on one trn1 NeuronCore: y = x w.

Legacy NKI (neuronxcc.nki, up to Neuron SDK 2.26).
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
S = 2048                # rows (tokens)
H = 1000                # hidden size
O = 3000                # outputs
TILE_S = 128            # one tile along S
BLOCK_S = 1024          # one block of tiles along S
TILE_H = 128            # one tile along H
BLOCK_H = 512           # one block of tiles along H
TILE_O = 512            # one tile along O
BLOCK_O = 1024          # one block of tiles along O


@nki.jit
def xw_opt(xT, w):
    """y = x w

    Arguments, in HBM:
        xT         [H, S]         bfloat16, activations transposed, one token a column
        w          [H, O]         bfloat16, weights, [inputs, outputs]
    Returns:
        y          [S, O]         bfloat16, result, one token a row

    SBUF: 68.0 of 176.0 KiB per partition, with every buffer in as many copies as planned.
    PSUM: 4 of 8 banks.
    Instructions: 1,320 with all loops unrolled.
    """
    y = nl.ndarray((S, O), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    i_p128 = nl.arange(128)[:, None]
    i_f1024 = nl.arange(1024)[None, :]
    i_f512 = nl.arange(512)[None, :]
    for nb in nl.affine_range((O + BLOCK_O - 1) // BLOCK_O):
        nb_start = nb * BLOCK_O

        # a strip of results for all rows stays on chip while the contraction is walked once
        res = nl.ndarray((S // TILE_S, nl.par_dim(P), BLOCK_O), dtype=nl.bfloat16, buffer=nl.sbuf)
        for mz in nl.affine_range(S // BLOCK_S):
            for mzt in nl.affine_range(BLOCK_S // TILE_S):
                for nz in nl.affine_range(BLOCK_O // TILE_O):
                    res[mz * (BLOCK_S // TILE_S) + mzt, 0:P, nz * TILE_O:nz * TILE_O + TILE_O] = nl.zeros(
                        (nl.par_dim(P), TILE_O),
                        dtype=nl.bfloat16,
                    )
        for kb in nl.sequential_range((H + BLOCK_H - 1) // BLOCK_H):
            rhs = nl.zeros((BLOCK_H // TILE_H, nl.par_dim(P), BLOCK_O), dtype=nl.bfloat16, buffer=nl.sbuf)
            for kr in nl.affine_range(BLOCK_H // TILE_H):
                kr_start = kb * BLOCK_H + kr * TILE_H
                rhs[kr, i_p128, i_f1024] = nl.load(
                    w[kr_start + i_p128, nb_start + i_f1024],
                    mask=(kr_start + i_p128 < H) & (nb_start + i_f1024 < O),
                )
            for mb in nl.affine_range(S // BLOCK_S):
                mb_start = mb * BLOCK_S
                lhs = nl.zeros((BLOCK_H // TILE_H, nl.par_dim(P), BLOCK_S), dtype=nl.bfloat16, buffer=nl.sbuf)
                for kl in nl.affine_range(BLOCK_H // TILE_H):
                    kl_start = kb * BLOCK_H + kl * TILE_H
                    lhs[kl, i_p128, i_f1024] = nl.load(
                        xT[kl_start + i_p128, mb_start + i_f1024],
                        mask=(kl_start + i_p128 < H),
                    )
                for n in nl.affine_range(BLOCK_O // TILE_O):
                    for m in nl.affine_range(BLOCK_S // TILE_S):
                        acc = nl.zeros((nl.par_dim(P), TILE_O), dtype=nl.float32, buffer=nl.psum)
                        for k in nl.affine_range(BLOCK_H // TILE_H):
                            acc[0:P, 0:TILE_O] += nisa.nc_matmul(
                                lhs[k, 0:P, m * TILE_S:m * TILE_S + TILE_S],
                                rhs[k, 0:P, n * TILE_O:n * TILE_O + TILE_O],
                            )
                        res[mb * (BLOCK_S // TILE_S) + m, 0:P, n * TILE_O:n * TILE_O + TILE_O] += acc[0:P, 0:TILE_O]
        for ms in nl.affine_range(S // BLOCK_S):
            for mst in nl.affine_range(BLOCK_S // TILE_S):
                mst_start = ms * BLOCK_S + mst * TILE_S
                row = nl.ndarray(
                    (BLOCK_O // TILE_O, nl.par_dim(P), TILE_O),
                    dtype=nl.bfloat16,
                    buffer=nl.sbuf,
                )
                for ns in nl.affine_range(BLOCK_O // TILE_O):
                    ns_start = nb_start + ns * TILE_O
                    row[ns, 0:P, 0:TILE_O] = nisa.activation(
                        op=nl.copy,
                        data=res[ms * (BLOCK_S // TILE_S) + mst, 0:P, ns * TILE_O:ns * TILE_O + TILE_O],
                        dtype=nl.bfloat16,
                    )
                    nl.store(
                        y[mst_start + i_p128, ns_start + i_f512],
                        value=row[ns, i_p128, i_f512],
                        mask=(ns_start + i_f512 < O),
                    )
    return y


def inputs(seed=0):
    """Random activations and weights; the scale keeps results near 1."""
    rng = np.random.default_rng(seed)
    return {
        "xT": rng.standard_normal((H, S), dtype=np.float32),
        "w": rng.standard_normal((H, O), dtype=np.float32) / np.float32(np.sqrt(H)),
    }


def arguments(m):
    """The kernel's arguments from the matrices of inputs()."""
    return [
        m["xT"],
        m["w"],
    ]


def reference(m):
    """The same in float64."""
    m = {name: a.astype(np.float64) for name, a in m.items()}
    x = m["xT"].T
    y = x @ m["w"]
    return y


def on_device(args, iters):
    """Runs on a NeuronCore; returns the result and the median latency in us."""
    y = nki.baremetal(xw_opt)(*args)
    timed = nki.benchmark(warmup=5, iters=iters)(xw_opt)
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
        y = nki.simulate_kernel(xw_opt, *args)
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
