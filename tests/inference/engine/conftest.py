"""Tiny random models of each family, as transformers builds them and as our engine runs them."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from inference.models.config import ModelConfig, RopeScaling
from inference.models.dense import DenseWeights
from inference.models.registry import Model, build_model

VOCAB_SIZE = 128
CONTEXT_TOKENS = 256
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT_TOKENS,
    "initializer_range": 0.3,
    "attn_implementation": "eager",
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}

FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {"rope_parameters": ROPE}),
    "llama-tied-biased": (
        "llama",
        {
            "rope_parameters": ROPE,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "llama3-rope": ("llama", {"rope_parameters": LLAMA3}),
    "linear-rope": ("llama", {"rope_parameters": LINEAR}),
    "yarn-rope": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {"rope_parameters": ROPE, "sliding_window": 24}),
    "qwen2": ("qwen2", {"rope_parameters": ROPE}),
    "qwen3": ("qwen3", {"rope_parameters": ROPE}),
}


class Pair:
    """The same weights twice."""

    def __init__(self, reference: PreTrainedModel, model: Model) -> None:
        self.reference = reference
        self.model = model

    @torch.no_grad()
    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        """What transformers answers, token by token."""
        ids = torch.tensor([prompt])
        output = self.reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False
        )
        answer: list[int] = output[0, len(prompt) :].tolist()
        return answer


def our_config(reference: PreTrainedModel) -> ModelConfig:
    hf = reference.config
    rope = hf.rope_parameters
    scaling = None
    if rope["rope_type"] != "default":
        scaling = RopeScaling(
            kind=rope["rope_type"],
            factor=rope["factor"],
            low_freq_factor=rope.get("low_freq_factor", 1.0),
            high_freq_factor=rope.get("high_freq_factor", 4.0),
            original_max_positions=rope.get("original_max_position_embeddings", 0),
        )
    return ModelConfig(
        architecture=hf.model_type,
        vocab_size=hf.vocab_size,
        hidden_size=hf.hidden_size,
        intermediate_size=hf.intermediate_size,
        num_layers=hf.num_hidden_layers,
        num_heads=hf.num_attention_heads,
        num_kv_heads=hf.num_key_value_heads,
        head_dim=hf.head_dim if getattr(hf, "head_dim", None) else 16,
        max_positions=hf.max_position_embeddings,
        rms_norm_eps=hf.rms_norm_eps,
        rope_theta=rope["rope_theta"],
        rope_scaling=scaling,
        tie_embeddings=hf.tie_word_embeddings,
        qk_norm=hf.model_type == "qwen3",
        sliding_window=getattr(hf, "sliding_window", None),
    )


def build_pair(name: str) -> Pair:
    model_type, overrides = FAMILIES[name]
    torch.manual_seed(7)
    hf_config = AutoConfig.for_model(
        model_type,
        **(
            {"tie_word_embeddings": False, "eos_token_id": None, "pad_token_id": 0}
            | SIZES
            | overrides
        ),
    )
    reference = AutoModelForCausalLM.from_config(hf_config, dtype=torch.float32).eval()
    for parameter_name, parameter in reference.named_parameters():
        if "norm" in parameter_name or parameter_name.endswith("bias"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    weights = DenseWeights(reference.state_dict(), torch.float32, torch.device("cpu"))
    return Pair(reference, build_model(our_config(reference), weights, CONTEXT_TOKENS))


@pytest.fixture(scope="session")
def llama_pair() -> Pair:
    return build_pair("llama")


@pytest.fixture(scope="session", params=sorted(FAMILIES))
def pair(request: pytest.FixtureRequest) -> Pair:
    return build_pair(request.param)
