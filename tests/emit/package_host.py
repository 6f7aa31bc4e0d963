"""Runs the host side of packages written by `neuronmlp emit --model` with PyTorch on the CPU.

usage: package_host.py NEURONMLP CHECKPOINT PACKAGE [PACKAGE_WITH_MORE_RANKS]

  - the whole model in float32 gives the logits of `neuronmlp logits` within 2e-5 of their spread (float32 both, sums in another
    order; 4e-3 where the norm's weights are rounded into the packed ones, or quantised attention to bf16), in bf16 within the limit of check_device.py;
  - kernels, run unmodified in the NumPy stand-in for NKI and chosen by rows, give what the packed weights give;
  - the parts of all ranks add up to the result of one;
  - the NxD Inference hook and the vLLM plugin put the modules where stand-ins for both look for them.
"""
import importlib.metadata
import json
import os
import subprocess
import sys
import types

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "nki_shim"))


def close(a, b, limit, what):
    error = float((a.double() - b.double()).abs().max() / (b.double().max() - b.double().min()))
    assert error <= limit, f"{what}: off by {error:.2e} of the spread, limit {limit:.0e}"
    return error


def engine_logits(command, folder, ids):
    text = subprocess.run([command, "logits", folder, "--ids", ",".join(map(str, ids)), "--positions",
                           ",".join(str(i) for i in range(len(ids))), "--json"], check=True, capture_output=True).stdout
    return torch.tensor(json.loads(text)["logits"])


def check_model(command, checkpoint, package):
    from whole_model import load
    with open(os.path.join(package.folder, "expected.json")) as file:
        expected = json.load(file)
    want = engine_logits(command, checkpoint, expected["ids"])
    assert want.argmax(-1).tolist() == expected["argmax"]
    close(torch.tensor(expected["logits"]), want[:, torch.tensor(expected["probes"])], 1e-6, "expected.json")
    with torch.no_grad():
        ids = torch.tensor([expected["ids"]])
        rounded = package.norm_eps is not None or package.manifest["weights_dtype"] == "fp8"  # norms into bf16 weights; attention in fp8 to bf16
        limit = 4e-3 if rounded else 2e-5
        exact = close(load(package, dtype=torch.float32)(input_ids=ids).logits[0], want, limit, "logits in float32")
        rough = close(load(package)(input_ids=ids).logits[0].float(), want, 6e-2, "logits in bf16")
    print(f"logits: float32 off by {exact:.1e}, bf16 by {rough:.1e} of their spread")


def check_kernels(package):
    from check_device import simulator
    from mlp import NeuronMlp, split_rows
    os.environ["NKI_SHIM_TARGET"] = package.manifest["target"]
    simulate = simulator(package.manifest["dialect"])
    for form in range(len(package.manifest["forms"])):
        module = NeuronMlp(package, package.manifest["layers"].index(form))
        names = {name for name, _ in module.named_parameters()}
        assert names == {entry["tensor"] for entry in module.entries}, "packed weights are not registered parameters"
        for rows in (1, 3, 41, 85):
            assert sum(split_rows(rows, module.buckets)) >= rows
            x = torch.randn(2, rows, package.hidden, generator=torch.Generator().manual_seed(rows)).to(torch.bfloat16)
            module.simulate = None
            want = module(x.double())
            module.simulate = simulate
            y = module(x)
            assert y.shape == x.shape and y.dtype == x.dtype
            close(y, want, 2e-2, f"form {form}, {rows} rows")


def check_splits():
    from mlp import split_rows
    buckets = ((1, 10.0), (128, 20.0), (1024, 100.0))
    assert split_rows(1, buckets) == (1,)
    assert split_rows(5, buckets) == (128,)  # five decode kernels would take longer
    assert split_rows(129, buckets) == (128, 1)
    assert split_rows(5000, buckets) == (1024,) * 4 + (1024,)
    for count in range(1, 1200, 7):
        assert sum(split_rows(count, buckets)) >= count


def check_ranks(whole, parted):
    from mlp import NeuronMlp
    for layer in range(len(whole.manifest["layers"])):
        x = torch.randn(5, whole.hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(layer))
        want = NeuronMlp(whole, layer)(x)
        parts = [NeuronMlp(parted, layer, rank, reduce=lambda y: y)(x) for rank in range(parted.tp)]
        close(sum(parts), want, 1e-12, f"layer {layer}: {parted.tp} ranks")
    try:
        NeuronMlp(parted, 0)(x)
        raise AssertionError("a rank's part passed as the whole")
    except RuntimeError:
        pass


def stand_in(package):
    """NxD Inference as far as the hook sees it: a model class with layers, a state dict conversion, a registry."""

    class Model:
        def init_model(self, config):
            self.layers = [types.SimpleNamespace(mlp=None) for _ in package.manifest["layers"]]

    class NeuronLlamaForCausalLM:
        _model_cls = Model

        @staticmethod
        def convert_hf_to_neuron_state_dict(state_dict, config):
            return dict(state_dict, converted=True)

    constants = types.ModuleType("neuronx_distributed_inference.utils.constants")
    with open(os.path.join(package.folder, "checkpoint", "config.json")) as file:
        kind = json.load(file)["model_type"]
    constants.MODEL_TYPES = {kind: {"causal-lm": NeuronLlamaForCausalLM}}
    sys.modules.update({"neuronx_distributed_inference": types.ModuleType("n"),
                        "neuronx_distributed_inference.utils": types.ModuleType("u"),
                        "neuronx_distributed_inference.utils.constants": constants})
    return constants.MODEL_TYPES[kind]


def check_hooks(package):
    registry = stand_in(package)
    entries = importlib.metadata.entry_points(group="vllm.general_plugins")
    register = [e for e in entries if e.name == "neuronmlp"][0].load()
    register()
    register()  # vLLM may call it more than once in a process
    hosted = registry["causal-lm"]
    model = hosted._model_cls()
    config = types.SimpleNamespace(neuron_config=types.SimpleNamespace(tp_degree=1))
    if package.adds_residual:
        try:
            model.init_model(config)
            raise AssertionError("kernels that add the residual were taken by a stack that adds it too")
        except ValueError as error:
            assert "--fuse norm" in str(error)
        return
    model.init_model(config)
    state = hosted.convert_hf_to_neuron_state_dict({}, config)
    assert state["converted"]
    x = torch.randn(1, 3, package.hidden, dtype=torch.float32)
    for number, layer in enumerate(model.layers):
        own = {name[len(f"layers.{number}.mlp."):]: value for name, value in state.items() if name.startswith(f"layers.{number}.mlp.")}
        layer.mlp.load_state_dict(own, strict=True)
        y, residual = layer.mlp(x, rmsnorm=lambda v: v / 2, residual=x)
        from mlp import NeuronMlp
        normalised = package.norm_eps is not None  # then the layer's own norm is gone, and the one given is not called
        assert torch.equal(residual, 2 * x) and torch.equal(y, NeuronMlp(package, number)(2 * x if normalised else x))
        assert isinstance(getattr(layer, "post_attention_layernorm", None), torch.nn.Identity) == normalised
    for wrong in ({"tp_degree": 2}, {"mlp_kernel_enabled": True}, {"sequence_parallel_enabled": True}):
        try:
            model.init_model(types.SimpleNamespace(neuron_config=types.SimpleNamespace(**{"tp_degree": 1, **wrong})))
            raise AssertionError(f"{wrong} was taken")
        except ValueError:
            pass


def check_launch(package):
    if package.manifest["dialect"] != "nki":
        return
    os.environ["NEURON_LOGICAL_NC_CONFIG"] = str(3 - package.lnc)
    try:
        package.check_runtime()
        raise AssertionError("a wrong number of cores was taken")
    except RuntimeError as error:
        assert f"--lnc {3 - package.lnc}" in str(error)
    del os.environ["NEURON_LOGICAL_NC_CONFIG"]


def main():
    command, checkpoint, folder = sys.argv[1:4]
    sys.path.insert(0, folder)
    from mlp import Package
    package = Package(folder)
    check_splits()
    check_launch(package)
    check_kernels(package)
    check_model(command, checkpoint, package)
    check_hooks(package)
    for other in sys.argv[4:]:
        check_ranks(package, Package(other))
    print(f"host of {folder}: ok")


if __name__ == "__main__":
    main()
