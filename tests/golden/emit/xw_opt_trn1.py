"""xw_opt on one trn1 NeuronCore: y = x w.

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
S = 2048                # rows (tokens)
H = 1000                # hidden size
O = 3000                # outputs
TILE_S = 128            # one tile along S
BLOCK_S = 1024          # one block of tiles along S
TILE_H = 128            # one tile along H
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
    for nb in nl.affine_range(2):
        nb_start = nb * BLOCK_O

        # a strip of results for all rows stays on chip while the contraction is walked once
        res = nl.ndarray((nl.par_dim(P), S // TILE_S, BLOCK_O), dtype=nl.bfloat16, buffer=nl.sbuf)
        for mz in nl.affine_range(S // BLOCK_S):
            for mzt in nl.affine_range(BLOCK_S // TILE_S):
                for nz in nl.affine_range(BLOCK_O // TILE_O):
                    res[0:P, mz * (BLOCK_S // TILE_S) + mzt, nz * TILE_O:nz * TILE_O + TILE_O] = nl.zeros(
                        (nl.par_dim(P), TILE_O),
                        dtype=nl.bfloat16,
                    )
        rhs = nl.ndarray((nl.par_dim(P), 4, BLOCK_O), dtype=nl.bfloat16, buffer=nl.sbuf)
        for kr in nl.affine_range(4):
            kr_start = kr * TILE_H
            rhs[0:P, kr, 0:BLOCK_O] = nl.load(w[kr_start:kr_start + TILE_H, nb_start:nb_start + BLOCK_O])
        for mb in nl.affine_range(S // BLOCK_S):
            mb_start = mb * BLOCK_S
            lhs = nl.ndarray((nl.par_dim(P), 4, BLOCK_S), dtype=nl.bfloat16, buffer=nl.sbuf)
            for kl in nl.affine_range(4):
                kl_start = kl * TILE_H
                lhs[0:P, kl, 0:BLOCK_S] = nl.load(xT[kl_start:kl_start + TILE_H, mb_start:mb_start + BLOCK_S])
            for n in nl.affine_range(BLOCK_O // TILE_O):
                for m in nl.affine_range(BLOCK_S // TILE_S):
                    acc = nl.zeros((nl.par_dim(P), TILE_O), dtype=nl.float32, buffer=nl.psum)
                    for k in nl.affine_range(4):
                        acc[0:P, 0:TILE_O] += nisa.nc_matmul(
                            lhs[0:P, k, m * TILE_S:m * TILE_S + TILE_S],
                            rhs[0:P, k, n * TILE_O:n * TILE_O + TILE_O],
                        )
                    res[0:P, mb * (BLOCK_S // TILE_S) + m, n * TILE_O:n * TILE_O + TILE_O] += acc[0:P, 0:TILE_O]
        rhs = nl.ndarray((nl.par_dim(P), 4, BLOCK_O), dtype=nl.bfloat16, buffer=nl.sbuf)
        for kr in nl.affine_range(3):
            kr_start = kr * TILE_H
            rhs[0:P, kr, 0:BLOCK_O] = nl.load(
                w[kr_start + 512:kr_start + 512 + TILE_H, nb_start:nb_start + BLOCK_O],
            )
        rhs[0:104, 3, 0:BLOCK_O] = nl.load(w[896:1000, nb_start:nb_start + BLOCK_O])
        for mb in nl.affine_range(S // BLOCK_S):
            mb_start = mb * BLOCK_S
            lhs = nl.ndarray((nl.par_dim(P), 4, BLOCK_S), dtype=nl.bfloat16, buffer=nl.sbuf)
            for kl in nl.affine_range(3):
                kl_start = kl * TILE_H
                lhs[0:P, kl, 0:BLOCK_S] = nl.load(
                    xT[kl_start + 512:kl_start + 512 + TILE_H, mb_start:mb_start + BLOCK_S],
                )
            lhs[0:104, 3, 0:BLOCK_S] = nl.load(xT[896:1000, mb_start:mb_start + BLOCK_S])
            for n in nl.affine_range(BLOCK_O // TILE_O):
                for m in nl.affine_range(BLOCK_S // TILE_S):
                    acc = nl.zeros((nl.par_dim(P), TILE_O), dtype=nl.float32, buffer=nl.psum)
                    for k in nl.affine_range(3):
                        acc[0:P, 0:TILE_O] += nisa.nc_matmul(
                            lhs[0:P, k, m * TILE_S:m * TILE_S + TILE_S],
                            rhs[0:P, k, n * TILE_O:n * TILE_O + TILE_O],
                        )
                    acc[0:P, 0:TILE_O] += nisa.nc_matmul(
                        lhs[0:104, 3, m * TILE_S:m * TILE_S + TILE_S],
                        rhs[0:104, 3, n * TILE_O:n * TILE_O + TILE_O],
                    )
                    res[0:P, mb * (BLOCK_S // TILE_S) + m, n * TILE_O:n * TILE_O + TILE_O] += acc[0:P, 0:TILE_O]
        for ms in nl.affine_range(S // BLOCK_S):
            for mst in nl.affine_range(BLOCK_S // TILE_S):
                mst_start = ms * BLOCK_S + mst * TILE_S
                row = nl.ndarray(
                    (nl.par_dim(P), BLOCK_O // TILE_O, TILE_O),
                    dtype=nl.bfloat16,
                    buffer=nl.sbuf,
                )
                for ns in nl.affine_range(BLOCK_O // TILE_O):
                    ns_start = nb_start + ns * TILE_O
                    row[0:P, ns, 0:TILE_O] = nisa.activation(
                        op=nl.copy,
                        data=res[0:P, ms * (BLOCK_S // TILE_S) + mst, ns * TILE_O:ns * TILE_O + TILE_O],
                        dtype=nl.bfloat16,
                    )
                    nl.store(
                        y[mst_start:mst_start + TILE_S, ns_start:ns_start + TILE_O],
                        value=row[0:P, ns, 0:TILE_O],
                    )
    res = nl.ndarray((nl.par_dim(P), S // TILE_S, BLOCK_O), dtype=nl.bfloat16, buffer=nl.sbuf)
    for mz in nl.affine_range(S // BLOCK_S):
        for mzt in nl.affine_range(BLOCK_S // TILE_S):
            res[0:P, mz * (BLOCK_S // TILE_S) + mzt, 0:TILE_O] = nl.zeros(
                (nl.par_dim(P), TILE_O),
                dtype=nl.bfloat16,
            )
            res[0:P, mz * (BLOCK_S // TILE_S) + mzt, 512:952] = nl.zeros(
                (nl.par_dim(P), 440),
                dtype=nl.bfloat16,
            )
    rhs = nl.ndarray((nl.par_dim(P), 4, BLOCK_O), dtype=nl.bfloat16, buffer=nl.sbuf)
    for kr in nl.affine_range(4):
        kr_start = kr * TILE_H
        rhs[0:P, kr, 0:952] = nl.load(w[kr_start:kr_start + TILE_H, 2048:3000])
    for mb in nl.affine_range(S // BLOCK_S):
        mb_start = mb * BLOCK_S
        lhs = nl.ndarray((nl.par_dim(P), 4, BLOCK_S), dtype=nl.bfloat16, buffer=nl.sbuf)
        for kl in nl.affine_range(4):
            kl_start = kl * TILE_H
            lhs[0:P, kl, 0:BLOCK_S] = nl.load(xT[kl_start:kl_start + TILE_H, mb_start:mb_start + BLOCK_S])
        for m in nl.affine_range(BLOCK_S // TILE_S):
            acc = nl.zeros((nl.par_dim(P), TILE_O), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(4):
                acc[0:P, 0:TILE_O] += nisa.nc_matmul(
                    lhs[0:P, k, m * TILE_S:m * TILE_S + TILE_S],
                    rhs[0:P, k, 0:TILE_O],
                )
            res[0:P, mb * (BLOCK_S // TILE_S) + m, 0:TILE_O] += acc[0:P, 0:TILE_O]
        for m in nl.affine_range(BLOCK_S // TILE_S):
            acc = nl.zeros((nl.par_dim(P), TILE_O), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(4):
                acc[0:P, 0:440] += nisa.nc_matmul(
                    lhs[0:P, k, m * TILE_S:m * TILE_S + TILE_S],
                    rhs[0:P, k, 512:952],
                )
            res[0:P, mb * (BLOCK_S // TILE_S) + m, 512:952] += acc[0:P, 0:440]
    rhs = nl.ndarray((nl.par_dim(P), 4, BLOCK_O), dtype=nl.bfloat16, buffer=nl.sbuf)
    for kr in nl.affine_range(3):
        kr_start = kr * TILE_H
        rhs[0:P, kr, 0:952] = nl.load(w[kr_start + 512:kr_start + 512 + TILE_H, 2048:3000])
    rhs[0:104, 3, 0:952] = nl.load(w[896:1000, 2048:3000])
    for mb in nl.affine_range(S // BLOCK_S):
        mb_start = mb * BLOCK_S
        lhs = nl.ndarray((nl.par_dim(P), 4, BLOCK_S), dtype=nl.bfloat16, buffer=nl.sbuf)
        for kl in nl.affine_range(3):
            kl_start = kl * TILE_H
            lhs[0:P, kl, 0:BLOCK_S] = nl.load(
                xT[kl_start + 512:kl_start + 512 + TILE_H, mb_start:mb_start + BLOCK_S],
            )
        lhs[0:104, 3, 0:BLOCK_S] = nl.load(xT[896:1000, mb_start:mb_start + BLOCK_S])
        for m in nl.affine_range(BLOCK_S // TILE_S):
            acc = nl.zeros((nl.par_dim(P), TILE_O), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(3):
                acc[0:P, 0:TILE_O] += nisa.nc_matmul(
                    lhs[0:P, k, m * TILE_S:m * TILE_S + TILE_S],
                    rhs[0:P, k, 0:TILE_O],
                )
            acc[0:P, 0:TILE_O] += nisa.nc_matmul(
                lhs[0:104, 3, m * TILE_S:m * TILE_S + TILE_S],
                rhs[0:104, 3, 0:TILE_O],
            )
            res[0:P, mb * (BLOCK_S // TILE_S) + m, 0:TILE_O] += acc[0:P, 0:TILE_O]
        for m in nl.affine_range(BLOCK_S // TILE_S):
            acc = nl.zeros((nl.par_dim(P), TILE_O), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(3):
                acc[0:P, 0:440] += nisa.nc_matmul(
                    lhs[0:P, k, m * TILE_S:m * TILE_S + TILE_S],
                    rhs[0:P, k, 512:952],
                )
            acc[0:P, 0:440] += nisa.nc_matmul(
                lhs[0:104, 3, m * TILE_S:m * TILE_S + TILE_S],
                rhs[0:104, 3, 512:952],
            )
            res[0:P, mb * (BLOCK_S // TILE_S) + m, 512:952] += acc[0:P, 0:440]
    for ms in nl.affine_range(S // BLOCK_S):
        for mst in nl.affine_range(BLOCK_S // TILE_S):
            mst_start = ms * BLOCK_S + mst * TILE_S
            row = nl.ndarray((nl.par_dim(P), BLOCK_O // TILE_O, TILE_O), dtype=nl.bfloat16, buffer=nl.sbuf)
            row[0:P, 0, 0:TILE_O] = nisa.activation(
                op=nl.copy,
                data=res[0:P, ms * (BLOCK_S // TILE_S) + mst, 0:TILE_O],
                dtype=nl.bfloat16,
            )
            nl.store(y[mst_start:mst_start + TILE_S, 2048:2560], value=row[0:P, 0, 0:TILE_O])
            row[0:P, 1, 0:440] = nisa.activation(
                op=nl.copy,
                data=res[0:P, ms * (BLOCK_S // TILE_S) + mst, 512:952],
                dtype=nl.bfloat16,
            )
            nl.store(y[mst_start:mst_start + TILE_S, 2560:3000], value=row[0:P, 1, 0:440])
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
