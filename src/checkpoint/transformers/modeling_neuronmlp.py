# Licensed under the Apache License, Version 2.0. Part of neuronmlp; written beside every compressed checkpoint.
"""A causal language model with factorised matrices: the original model's class with its MLPs, and
where they have factors the projections of its attention, replaced.

W [N,K] = u [N,r] v [r,K]; gate and up may share one v, which is then gate_up_proj.v,
and q, k and v one that is qkv_proj.v. With slices of the intermediate
width, u and v hold the factors of all slices one below the other: those of gate and up give parts of the outputs, those
of down take parts of the inputs, and their results add up. Experts are MLPs one by one.
"""
import torch
import transformers
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.activations import ACT2FN

from .configuration_neuronmlp import NeuronmlpConfig


NAMES = ("gate_proj", "up_proj", "down_proj")
MIXTRAL_NAMES = ("w1", "w3", "w2")


class Basis(nn.Module):
    def __init__(self, rank, inputs):
        super().__init__()
        self.v = nn.Parameter(torch.empty(rank, inputs))


class Factors(nn.Module):
    def __init__(self, inputs, outputs, rank, basis=None, slices=1, down=False, bias=False):
        super().__init__()
        self.slices, self.down = slices, down
        self.u = nn.Parameter(torch.empty(outputs * slices if down else outputs, rank))
        if basis is None:
            self.v = nn.Parameter(torch.empty(rank * slices, inputs // slices if down else inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.shared = (basis,)  # a tuple, so that its parameters belong to it alone

    def forward(self, x):
        v = self.v if self.shared[0] is None else self.shared[0].v
        if self.slices == 1:
            return nn.functional.linear(nn.functional.linear(x, v), self.u, self.bias)
        parts = x.chunk(self.slices, dim=-1) if self.down else [x] * self.slices
        made = [nn.functional.linear(nn.functional.linear(part, first), second)
                for part, first, second in zip(parts, v.chunk(self.slices), self.u.chunk(self.slices))]
        return sum(made) if self.down else torch.cat(made, dim=-1)


class FactorisedMLP(nn.Module):
    """act(gate(x)) * up(x), then down; each dense or factors. `path` is its name in the checkpoint."""

    def __init__(self, config, path, inner, shared, names=NAMES):
        super().__init__()
        ranks, slices = config.neuronmlp["ranks"], config.neuronmlp.get("slices", 1)
        hidden = config.hidden_size
        basis = None
        self.names = names
        if shared:
            basis = self.gate_up_proj = Basis(ranks[f"{path}.{names[0]}"] * slices, hidden)
        for name, inputs, outputs in zip(names, (hidden, hidden, inner), (inner, inner, hidden)):
            rank = ranks.get(f"{path}.{name}", 0)
            module = nn.Linear(inputs, outputs, bias=False)
            if rank:
                down = name == names[2]
                module = Factors(inputs, outputs, rank, None if down else basis, slices, down)
            setattr(self, name, module)
        self.act_fn = ACT2FN[getattr(config, "hidden_activation", None) or config.hidden_act]

    def forward(self, x):
        gate, up, down = (getattr(self, name) for name in self.names)
        return down(self.act_fn(gate(x)) * up(x))


class Experts(nn.ModuleList):
    """In place of the original's experts, which has all of them in one tensor."""

    def forward(self, hidden_states, top_k_index, top_k_weights):
        out = torch.zeros_like(hidden_states)
        for index, expert in enumerate(self):
            token, place = torch.where(top_k_index == index)
            if token.numel():
                rows = expert(hidden_states[token]) * top_k_weights[token, place, None]
                out.index_add_(0, token, rows.to(out.dtype))
        return out


def replace_experts(config, layer, path, shared):
    block = layer.mlp
    mixtral = config.base_architecture.startswith("Mixtral")
    name = f"{path}.block_sparse_moe" if mixtral else f"{path}.mlp"
    inner = block.experts.intermediate_dim
    block.experts = Experts(FactorisedMLP(config, f"{name}.experts.{index}", inner, shared,
                                          MIXTRAL_NAMES if mixtral else NAMES)
                            for index in range(block.experts.num_experts))
    if mixtral:  # the checkpoint's name; the layer runs it as mlp
        del layer.mlp
        layer.block_sparse_moe = block
        object.__setattr__(layer, "mlp", block)


def factorise_attention(config, attention, path, shared):
    """Projections with a rank become factors in place; biases stay with them."""
    ranks = config.neuronmlp["ranks"]
    basis = None
    if shared:
        basis = attention.qkv_proj = Basis(ranks[f"{path}.q_proj"], config.hidden_size)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        rank = ranks.get(f"{path}.{name}", 0)
        if rank:
            old = getattr(attention, name)
            setattr(attention, name, Factors(old.in_features, old.out_features, rank,
                                             None if name == "o_proj" else basis, bias=old.bias is not None))


class NeuronmlpForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = NeuronmlpConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        original = getattr(transformers, config.base_architecture)
        model = original(config.base_config())
        self.model = model.model
        self.lm_head = model.lm_head
        self.vocab_size = config.vocab_size
        self.run = original.forward
        ranks = config.neuronmlp["ranks"]
        for index, layer in enumerate(self.model.layers):
            path = f"model.layers.{index}"
            shared = index in config.neuronmlp.get("shared_basis", [])
            factorise_attention(config, layer.self_attn, f"{path}.self_attn",
                                index in config.neuronmlp.get("attention_shared_basis", []))
            if hasattr(layer.mlp, "experts"):
                replace_experts(config, layer, path, shared)
            elif any(ranks.get(f"{path}.mlp.{name}", 0) for name in NAMES):
                layer.mlp = FactorisedMLP(config, f"{path}.mlp", config.intermediate_size, shared)
        self.post_init()

    def _init_weights(self, module):
        """Weights come from the checkpoint."""

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def set_input_embeddings(self, value):
        self.model.embed_tokens = value

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, value):
        self.lm_head = value

    def forward(self, *args, **kwargs):
        return self.run(self, *args, **kwargs)
