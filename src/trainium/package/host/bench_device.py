"""Times every kernel on a NeuronCore and writes measured.csv, which `neuronmlp fit` reads.

    ./run.sh bench [--iters 50] [-o measured.csv]

With current NKI a call is timed from the host, which sees launches: the kernel is therefore chained (its result has the
shape of its input) once and `--chain` times in one graph, and the difference is the time of one call on the device. The
legacy dialect has nki.benchmark, which asks the device; its times include the start of the kernel.
"""
import argparse
import csv
import os
import statistics
import sys
import time

import torch

from mlp import NeuronMlp, Package, to_array

COLUMNS = ("kernel", "s", "h", "r", "o", "gate", "up", "down", "shared", "norm", "residual", "fp8", "dtype", "tiling", "us", "launch")


def chained_us(module, entry, x, chain, iters):
    import torch_xla
    import torch_xla.core.xla_model as xm

    def run(count):
        times = []
        for _ in range(3 + iters):
            xm.wait_device_ops()
            begin = time.perf_counter()
            y = x
            for _ in range(count):
                y = module.call(entry, y)
            torch_xla.sync()
            xm.wait_device_ops()
            times.append(time.perf_counter() - begin)
        return statistics.median(times[3:])

    return 1e6 * (run(1 + chain) - run(1)) / chain


def legacy_us(module, entry, x, iters):
    from neuronxcc import nki
    arrays = [to_array(x if name == "x" else getattr(module, name)) for name in entry["arguments"]]
    timed = nki.benchmark(warmup=5, iters=iters)(module.package.function(entry))
    timed(*arrays)
    return timed.benchmark_result.nc_latency.get_latency_percentile(50)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iters", type=int, default=50, help="timed calls")
    parser.add_argument("--chain", type=int, default=16, help="calls in the longer graph")
    parser.add_argument("-o", "--output", default="measured.csv")
    options = parser.parse_args()
    package = Package(os.path.dirname(os.path.abspath(__file__)))
    m = package.manifest
    device = None
    if m["dialect"] == "nki":
        package.check_runtime()
        from whole_model import neuron_device
        device, why = neuron_device()
        if device is None:
            print(f"no NeuronCore could be used ({why})", file=sys.stderr)
            return 2
    rows = []
    for entry in m["kernels"]:
        layer = m["layers"].index(entry["form"])
        form = m["forms"][entry["form"]]
        module = NeuronMlp(package, layer, reduce=lambda y: y)
        x = torch.randn(entry["rows"], package.hidden).to(package.dtype)
        if device is None:
            us = legacy_us(module, entry, x, options.iters)
        else:
            us = chained_us(module.to(device), entry, x.to(device), options.chain, options.iters)
        rows.append(("mlp", entry["rows"], m["hidden"], 0, m["intermediate"] // (m["tp"] * m["lnc"]), form["gate"], form["up"],
                     form["down"], int(form["shared"]), m["fused"]["norm_eps"] or 0, int(m["fused"]["residual"]), int(m["weights_dtype"] == "fp8"), m["dtype"], entry["tiling"], f"{us:.3f}", int(device is None)))
        print(f"  {entry['id']:24s} {us:10.1f} us measured, {entry['simulated_us']:10.1f} us simulated", flush=True)
    with open(options.output, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    print(f"{options.output}: {len(rows)} kernels; next: neuronmlp fit {options.output} --target {m['target']} -o fitted.machine")
    return 0


if __name__ == "__main__":
    sys.exit(main())
