"""NxD Inference with this package's MLPs. Written for neuronx-distributed-inference 0.7 (Neuron SDK 2.28).

    from nxdi_hook import hosted_class
    from neuronx_distributed_inference.models.llama.modeling_llama import NeuronLlamaForCausalLM
    Model = hosted_class(NeuronLlamaForCausalLM, Package(folder))
    model = Model(os.path.join(folder, "checkpoint"), config)

The model's layers keep their attention and the norms that the kernels do not have; their MLPs are replaced when the graph is built. Packed weights join the
state dict under the names of the module's parameters; each is the ranks' parts side by side, so that NxD's ordinary
sharding along the second axis gives every rank its own.
"""
import torch

from mlp import NeuronMlp

PINNED = "0.7"


def reduce_over_ranks(y):
    from neuronx_distributed.parallel_layers.mappings import reduce_from_tensor_model_parallel_region
    return reduce_from_tensor_model_parallel_region(y)


class HostedMlp(NeuronMlp):
    """Takes and returns what NxD Inference's MLPs do: the result and the residual, both optional inputs honoured."""

    def __init__(self, package, layer):
        super().__init__(package, layer, reduce=reduce_over_ranks, load=False)
        for entry in self.entries if package.tp > 1 else ():
            parameter = getattr(self, entry["tensor"])
            parameter.tensor_model_parallel, parameter.num_partitions = True, package.tp
            parameter.partition_dim, parameter.partition_stride = 1, 1

    def forward(self, x, rmsnorm=None, residual=None, adapter_ids=None, **_):
        if adapter_ids is not None:
            raise NotImplementedError("adapters are not supported by the package's MLPs")
        if residual is not None:
            x = residual = x + residual
        if rmsnorm is not None and self.package.norm_eps is None:
            x = rmsnorm(x)
        return super().forward(x), residual


def state_of(package):
    """Packed weights of all layers and ranks as NxD Inference names them."""
    state = {}
    for layer in range(len(package.manifest["layers"])):
        parts = [package.tensors(layer, rank) for rank in range(package.tp)]
        for name in parts[0]:
            state[f"layers.{layer}.mlp.{name}"] = torch.cat([part[name] for part in parts], dim=1)
    return state


def check_config(neuron_config, package):
    """What would make NxD Inference call its own MLP kernels, or hand rows out otherwise."""
    if getattr(neuron_config, "tp_degree", 1) != package.tp:
        raise ValueError(f"tp_degree is {neuron_config.tp_degree}, the package was written for {package.tp}")
    for name in ("mlp_kernel_enabled", "quantized_mlp_kernel_enabled", "sequence_parallel_enabled", "quantized"):
        if getattr(neuron_config, name, False):
            raise ValueError(f"{name} must be off: the package brings its own MLP kernels")
    if getattr(neuron_config, "mlp_cp_degree", 1) > 1:
        raise ValueError("mlp_cp_degree must be 1: the package's weights are split by tensor parallelism only")


def hosted_class(base, package):
    """`base`, one of NxD Inference's Neuron...ForCausalLM, with the package's MLPs."""

    class HostedModel(base._model_cls):
        def init_model(self, config):
            check_config(config.neuron_config, package)
            super().init_model(config)
            if len(self.layers) != len(package.manifest["layers"]):
                raise ValueError(f"{len(self.layers)} layers, the package has {len(package.manifest['layers'])}")
            if package.adds_residual:
                raise ValueError("the package's kernels add the residual, and so does NxD Inference: write it with --fuse norm")
            for number, layer in enumerate(self.layers):
                layer.mlp = HostedMlp(package, number)
                if package.norm_eps is not None:
                    layer.post_attention_layernorm = torch.nn.Identity()

    class Hosted(base):
        _model_cls = HostedModel

        @staticmethod
        def convert_hf_to_neuron_state_dict(state_dict, config):
            state_dict = base.convert_hf_to_neuron_state_dict(state_dict, config)
            if package.norm_eps is not None:  # part of the packed weights
                state_dict = {name: tensor for name, tensor in state_dict.items() if not name.endswith("post_attention_layernorm.weight")}
            state_dict.update(state_of(package))
            return state_dict

    Hosted.__name__ = f"Hosted{base.__name__}"
    return Hosted
