"""Is this package right on this machine? Every kernel against float64, then the model's logits against those of neuronmlp.

    ./run.sh check              on a NeuronCore
    ./run.sh check --simulate   kernels in NKI's CPU simulator (slow: small models only)
    ./run.sh check --cpu        no kernels: the packed weights, through PyTorch's own products

The exit code is 0 when everything is within the limit of the dtype, 1 when not, 2 when it could not be tried.
"""
import argparse
import json
import os
import sys

import torch

from mlp import NeuronMlp, Package, to_array

LIMITS = {"bf16": 2e-2, "fp16": 5e-3, "fp32": 1e-4}  # of one MLP, by the largest value
LOGIT_LIMITS = {"bf16": 6e-2, "fp16": 2e-2, "fp32": 1e-3}  # of the model, by the spread of the logits


def simulator(dialect):
    """Runs a kernel in NKI's own simulator."""
    if dialect == "nki":
        import nki
        run = lambda function, arrays: nki.simulate(function)(*arrays)  # noqa: E731
    else:
        from neuronxcc import nki
        run = lambda function, arrays: nki.simulate_kernel(function, *arrays)  # noqa: E731
    import numpy as np

    def simulate(function, arguments):
        y = run(function, [to_array(a) for a in arguments])
        return torch.from_numpy(np.asarray(y).astype(np.float32)).to(arguments[0].dtype)

    return simulate


def check_kernels(package, rank, device, simulate):
    bad = 0
    for entry in package.manifest["kernels"]:
        layer = package.manifest["layers"].index(entry["form"])
        module = NeuronMlp(package, layer, rank, reduce=lambda y: y)
        x = torch.randn(entry["rows"], package.hidden, generator=torch.Generator().manual_seed(entry["rows"]))
        x = x.to(package.dtype)
        want = module.by_products(x.double())
        if simulate or device is not None:
            module.simulate = simulate
            if device is not None:
                module = module.to(device)
            y = module.call(entry, x if device is None else x.to(device)).cpu().double()
        else:
            y = module.by_products(x).double()
        error = float((y - want).abs().max() / want.abs().max())
        limit = LIMITS[package.manifest["dtype"]]
        print(f"  {entry['id']:24s} {error:9.2e} of the largest value, limit {limit:.0e}: {'ok' if error <= limit else 'WRONG'}")
        bad += not error <= limit
    return bad


def check_logits(package, rank, device, simulate, reduce):
    with open(os.path.join(package.folder, "expected.json")) as file:
        expected = json.load(file)
    from whole_model import load, mlp_of
    model = load(package, rank, reduce=reduce)
    for layer in model.model.layers:
        mlp_of(layer).simulate = simulate
    ids = torch.tensor([expected["ids"]])
    if device is not None:
        model, ids = model.to(device), ids.to(device)
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0].cpu().double()
    probes = torch.tensor(expected["probes"])
    want = torch.tensor(expected["logits"], dtype=torch.float64)
    error = float((logits[:, probes] - want).abs().max() / (want.max() - want.min()))
    limit = LOGIT_LIMITS[package.manifest["dtype"]]
    same = sum(int(a == b) for a, b in zip(logits.argmax(-1).tolist(), expected["argmax"]))
    print(f"  logits at {len(expected['ids'])} positions: {error:.2e} of their spread, limit {limit:.0e}; "
          f"{same} of {len(expected['ids'])} best tokens the same: {'ok' if error <= limit else 'WRONG'}")
    return int(not error <= limit)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="no kernels, PyTorch's own products")
    parser.add_argument("--simulate", action="store_true", help="kernels in NKI's CPU simulator")
    parser.add_argument("--kernels-only", action="store_true", help="leave the logits out (no transformers needed)")
    options = parser.parse_args()
    package = Package(os.path.dirname(os.path.abspath(__file__)))
    rank, reduce, device, simulate = int(os.environ.get("RANK", 0)), None, None, None
    if package.tp > 1:
        torch.distributed.init_process_group("gloo" if options.cpu or options.simulate else "xla")
        from mlp import all_reduce as reduce
    if options.simulate:
        if package.manifest["dialect"] == "nki":
            os.environ.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", package.manifest["target"])
        simulate = simulator(package.manifest["dialect"])
    elif not options.cpu:
        package.check_runtime()
        from whole_model import neuron_device
        device, why = neuron_device()
        if device is None:
            print(f"no NeuronCore could be used ({why}); --cpu checks the weights without one", file=sys.stderr)
            return 2
    print(f"{package.manifest['model']} for {package.manifest['target']}, rank {rank} of {package.tp}, "
          f"{'device' if device is not None else 'simulator' if simulate else 'CPU without kernels'}")
    bad = check_kernels(package, rank, device, simulate)
    if not options.kernels_only:
        bad += check_logits(package, rank, device, simulate, reduce)
    print("right" if bad == 0 else f"{bad} checks FAILED")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
