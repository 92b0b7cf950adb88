"""gpt-oss: attention with sinks, within a window in every other layer, and biased experts behind a
clamped activation. Its published files hold the experts in MXFP4, and gates and the rest row by
row: ``loading/interleaved_experts.py`` cuts them up."""

from __future__ import annotations

from collections.abc import Iterator

from inference.loading.errors import BadFileError
from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import (
    DECODER,
    attention_tensors,
    in_layer,
    norm_tensors,
    outer_tensors,
)
from inference.models.families.family import Family, TensorRole
from inference.models.families.hub_config import (
    Json,
    check_activation,
    kinds_of_layers,
    positive_integer,
    read_decoder,
    repeated,
)
from inference.models.families.mixture import experts_of, sparse_tensors

PACKED = "mxfp4"


def read_config(config: Json, generation: Json) -> ModelConfig:
    """Raises ``BadFileError``."""
    check_activation(config, "silu")
    quantization = config.get("quantization_config") or {}
    if quantization.get("quant_method") == PACKED:
        config = {key: value for key, value in config.items() if key != "quantization_config"}
    num_layers = positive_integer(config, "num_hidden_layers")
    inner = positive_integer(config, "intermediate_size")
    has_bias = bool(config.get("attention_bias", True))
    kinds = kinds_of_layers(config, repeated(num_layers, 2))
    window = config.get("sliding_window")
    if window is None and "sliding" in kinds:
        raise BadFileError("config.json has layers within a window and does not say how wide it is")
    return read_decoder(
        config,
        generation,
        qkv_bias=has_bias,
        output_bias=has_bias,
        has_sinks=True,
        mixers=kinds,
        sliding_window=window,
        mlps=("sparse",) * num_layers,
        experts=experts_of(
            config,
            intermediate_size=inner,
            scoring="softmax_of_chosen",
            has_bias=True,
            swish_gain=float(config.get("swiglu_alpha", 1.702)),
            limit=float(config.get("swiglu_limit", 7.0)),
        ),
    )


def tensors(config: ModelConfig) -> Iterator[TensorRole]:
    yield from outer_tensors(config)
    for index in range(config.num_layers):
        for tensor in (
            *norm_tensors(config),
            *attention_tensors(config),
            *sparse_tensors(config),
        ):
            yield in_layer(index, tensor)


def hub_name(name: str) -> str:
    return name.replace(".mlp.router.", ".mlp.gate.")


GPT_OSS = Family(
    name="gpt-oss",
    model_types=("gpt_oss",),
    read_config=read_config,
    tensors=tensors,
    hub_name=hub_name,
    builder=DECODER,
)
