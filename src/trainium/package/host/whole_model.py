"""The whole model: Hugging Face's code for everything but the MLPs, the package's modules for those."""
import glob
import os

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from mlp import NeuronMlp, Package, all_reduce


class Nothing(torch.nn.Module):
    """In the place of an MLP whose layer's residual is added elsewhere."""

    def forward(self, x):
        return torch.zeros((), dtype=x.dtype, device=x.device)


def put_mlp(layer, mlp):
    """Gives a decoder layer this MLP, and takes from the layer what the MLP's kernels do besides."""
    layer.mlp = mlp
    if mlp.package.norm_eps is not None:
        layer.post_attention_layernorm = torch.nn.Identity()
    if mlp.package.adds_residual:
        layer.mlp, layer.fused = Nothing(), mlp

        def finish(module, arguments, out):
            return (module.fused(out[0]), *out[1:]) if isinstance(out, tuple) else module.fused(out)

        layer.register_forward_hook(finish)


def mlp_of(layer):
    return getattr(layer, "fused", layer.mlp)


def load(folder, rank=0, dtype=None, reduce=all_reduce):
    """The package's model on the CPU, weights and arithmetic outside the kernels in `dtype` (the package's by default)."""
    package = folder if isinstance(folder, Package) else Package(folder)
    checkpoint = os.path.join(package.folder, "checkpoint")
    config = AutoConfig.from_pretrained(checkpoint)
    width, config.intermediate_size = config.intermediate_size, 8  # MLPs are replaced: make them small
    model = AutoModelForCausalLM.from_config(config)
    config.intermediate_size = width
    for number, layer in enumerate(model.model.layers):
        put_mlp(layer, NeuronMlp(package, number, rank, reduce))
    state = {}
    for path in glob.glob(os.path.join(checkpoint, "*.safetensors")):
        with safe_open(path, framework="pt") as file:
            state.update({name: file.get_tensor(name) for name in file.keys()})
    if package.norm_eps is not None:  # part of the packed weights
        state = {name: tensor for name, tensor in state.items() if not name.endswith("post_attention_layernorm.weight")}
    missing, unknown = model.load_state_dict(state, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    missing = [name for name in missing if ".mlp." not in name and ".fused." not in name and name not in tied]
    if missing or unknown:
        raise ValueError(f"{checkpoint}: tensors missing {missing[:4]}, unknown {list(unknown)[:4]}")
    model.tie_weights()
    for name, parameter in model.named_parameters():  # not model.to(): tables of angles stay float32
        if ".mlp." not in name and ".fused." not in name:
            parameter.data = parameter.data.to(dtype or package.dtype)
    return model.eval()


def neuron_device():
    """This process's NeuronCore, or None with the reason."""
    try:
        import torch_xla
        return torch_xla.device(), ""
    except Exception as error:  # no package, no driver, no free core: all mean that there is no device here
        return None, f"{type(error).__name__}: {error}"
