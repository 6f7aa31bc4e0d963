# Licensed under the Apache License, Version 2.0. Part of neuronmlp; written beside every compressed checkpoint.
"""A causal language model with factorised matrices: the original model's class with its MLPs replaced.

W [N,K] = u [N,r] v [r,K]; gate and up may share one v, which is then gate_up_proj.v. With slices of the intermediate
width, u and v hold the factors of all slices one below the other: those of gate and up give parts of the outputs, those
of down take parts of the inputs, and their results add up.
"""
import torch
import transformers
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.activations import ACT2FN

from .configuration_neuronmlp import NeuronmlpConfig


def matrix_name(layer, matrix):
    return f"model.layers.{layer}.mlp.{matrix}"


class Basis(nn.Module):
    def __init__(self, rank, inputs):
        super().__init__()
        self.v = nn.Parameter(torch.empty(rank, inputs))


class Factors(nn.Module):
    def __init__(self, inputs, outputs, rank, basis=None, slices=1, down=False):
        super().__init__()
        self.slices, self.down = slices, down
        self.u = nn.Parameter(torch.empty(outputs * slices if down else outputs, rank))
        if basis is None:
            self.v = nn.Parameter(torch.empty(rank * slices, inputs // slices if down else inputs))
        self.shared = (basis,)  # a tuple, so that its parameters belong to it alone

    def forward(self, x):
        v = self.v if self.shared[0] is None else self.shared[0].v
        if self.slices == 1:
            return nn.functional.linear(nn.functional.linear(x, v), self.u)
        parts = x.chunk(self.slices, dim=-1) if self.down else [x] * self.slices
        made = [nn.functional.linear(nn.functional.linear(part, first), second)
                for part, first, second in zip(parts, v.chunk(self.slices), self.u.chunk(self.slices))]
        return sum(made) if self.down else torch.cat(made, dim=-1)


class FactorisedMLP(nn.Module):
    """act(gate(x)) * up(x), then down; each dense or factors."""

    def __init__(self, config, layer):
        super().__init__()
        ranks, slices = config.neuronmlp["ranks"], config.neuronmlp.get("slices", 1)
        hidden, inner = config.hidden_size, config.intermediate_size
        basis = None
        if layer in config.neuronmlp.get("shared_basis", []):
            basis = self.gate_up_proj = Basis(ranks[matrix_name(layer, "gate_proj")] * slices, hidden)
        for name, inputs, outputs in (("gate_proj", hidden, inner), ("up_proj", hidden, inner),
                                      ("down_proj", inner, hidden)):
            rank = ranks.get(matrix_name(layer, name), 0)
            module = nn.Linear(inputs, outputs, bias=False)
            if rank:
                down = name == "down_proj"
                module = Factors(inputs, outputs, rank, None if down else basis, slices, down)
            setattr(self, name, module)
        self.act_fn = ACT2FN[getattr(config, "hidden_activation", None) or config.hidden_act]

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


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
            names = [matrix_name(index, name) for name in ("gate_proj", "up_proj", "down_proj")]
            if any(ranks.get(name, 0) for name in names):
                layer.mlp = FactorisedMLP(config, index)
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
