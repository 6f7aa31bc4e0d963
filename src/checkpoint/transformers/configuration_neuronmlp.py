# Licensed under the Apache License, Version 2.0. Part of neuronmlp; written beside every compressed checkpoint.
"""The configuration of a model some of whose matrices are products of two thin factors.

It is the configuration of the model it was made from (base_architecture), with a "neuronmlp" object that names the rank
of every factorised matrix.
"""
import transformers
from transformers import PretrainedConfig

OWN_KEYS = ("model_type", "architectures", "auto_map", "transformers_version", "quantization_config")


class NeuronmlpConfig(PretrainedConfig):
    model_type = "neuronmlp"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(self, base_architecture=None, neuronmlp=None, **kwargs):
        if base_architecture is not None:
            own = {key: kwargs.pop(key) for key in OWN_KEYS if key in kwargs}
            base = getattr(transformers, base_architecture).config_class(**kwargs)
            values = {key: value for key, value in base.to_dict().items() if key not in OWN_KEYS}
            kwargs = {**kwargs, **values, **own}
            kwargs.pop("model_type", None)
        super().__init__(**kwargs)
        self.base_architecture = base_architecture
        self.neuronmlp = neuronmlp or {}

    def base_config(self):
        """As the original model's class takes it."""
        values = {key: value for key, value in self.to_dict().items() if key not in OWN_KEYS}
        values.pop("neuronmlp", None)
        values.pop("base_architecture", None)
        config = getattr(transformers, self.base_architecture).config_class(**values)
        config._attn_implementation = self._attn_implementation
        return config
