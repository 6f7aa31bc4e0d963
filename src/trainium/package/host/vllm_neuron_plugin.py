"""vLLM with this package's MLPs. Written for vllm-neuron 0.2 (vLLM 0.11, NxD Inference 0.7).

vLLM calls register() in every process (entry point group vllm.general_plugins, named in the folder's .dist-info). It puts
the package's class in the place of NxD Inference's for the model's type, from where vllm-neuron takes it.
"""
import importlib.metadata
import json
import os
import warnings

from mlp import Package

FOLDER = os.path.dirname(os.path.abspath(__file__))
PINNED = {"vllm": "0.11", "vllm-neuron": "0.2", "neuronx-distributed-inference": "0.7"}


def check_versions():
    for name, wanted in PINNED.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "not installed"
        if not found.startswith(wanted + "."):
            warnings.warn(f"{name} is {found}; this package's plugin was written for {wanted}")


def register():
    from neuronx_distributed_inference.utils.constants import MODEL_TYPES
    from nxdi_hook import hosted_class
    check_versions()
    with open(os.path.join(FOLDER, "checkpoint", "config.json")) as file:
        kind = json.load(file)["model_type"]
    if kind not in MODEL_TYPES:
        raise ValueError(f"NxD Inference knows no model_type {kind}; it has {sorted(MODEL_TYPES)}")
    base = MODEL_TYPES[kind]["causal-lm"]
    if not base.__name__.startswith("Hosted"):
        MODEL_TYPES[kind]["causal-lm"] = hosted_class(base, Package(FOLDER))
