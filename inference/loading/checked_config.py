"""Checks that the numbers of a ``ModelConfig`` make sense together, and bounds the counts that a
file declares: these before a family reads the file, because reading, planning and building a model
loop over them. Imports no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from inference.models.config import ModelConfig, RopeScaling
from inference.models.layer_configs import ExpertsConfig
from inference.models.vision_config import TowerKind, VisionConfig
from inference.protocol.load_errors import BadFileError

MOST_LAYERS = 1024
"""The deepest published decoders have some two hundred."""
MOST_EXPERTS = 2**16
"""Doge's config has 16,384 by default, which are single rows."""
MOST_POSITIONS = 2**24
"""The longest published contexts are of ten million tokens."""
MOST_OF_ANYTHING = 2**31 - 1
"""Kernels count in 32 bits."""

_LIMITS = (
    (re.compile(r"(.*[_.])?n?_?layers?|.*block_count|depth"), MOST_LAYERS),
    (re.compile(r"(.*[_.])?experts(_per_tok(en)?)?|.*expert_(used_|shared_)?count"), MOST_EXPERTS),
    (
        re.compile(
            r".*position_embeddings|n_positions|max_seq_len|seq_length|.*context_length|max_seqlen"
        ),
        MOST_POSITIONS,
    ),
)


def check_counts(declared: Mapping[str, Any]) -> None:
    """``declared``: config.json, or a GGUF's metadata. Raises ``BadFileError``."""
    for key, value in _whole_numbers(declared):
        most = next((most for names, most in _LIMITS if names.fullmatch(key)), None)
        if most is not None and value > most:
            raise BadFileError(f"{key} is {value}; this build reads models of up to {most}")


def _whole_numbers(declared: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    waiting = [declared]
    while waiting:
        for key, value in waiting.pop().items():
            if isinstance(value, Mapping):
                waiting.append(value)
            elif isinstance(value, int):
                yield key, value


LARGEST_NUMBER = 3.4028234e38
"""The largest number of float32, which models compute in. NaN compares false with it."""


def check_config(config: ModelConfig) -> ModelConfig:
    """Returns ``config``. Raises ``BadFileError``."""
    return _refused(config, _problems(config))


def check_tower(config: ModelConfig) -> ModelConfig:
    """Called once the files are known to hold the tower: text models made from a checkpoint with
    one often keep its config. Raises ``BadFileError``."""
    problems = iter(()) if config.vision is None else _vision_problems(config.vision, config)
    return _refused(config, problems)


def _refused(config: ModelConfig, problems: Iterator[str]) -> ModelConfig:
    if problem := next(problems, None):
        raise BadFileError(f"the model's config makes no sense: {problem}")
    return config


Check = Callable[[str, Any], Iterator[str]]


def _size(name: str, size: Any, most: int = MOST_OF_ANYTHING) -> Iterator[str]:
    if not isinstance(size, int) or not 1 <= size <= most:
        yield f"{name} is {size!r}, not a whole number from 1 to {most}"


def _finite(name: str, number: float) -> Iterator[str]:
    if not abs(number) <= LARGEST_NUMBER:
        yield f"{name} is {number}"


def _positive(name: str, number: float) -> Iterator[str]:
    if not 0 < number <= LARGEST_NUMBER:
        yield f"{name} is {number}, not a finite number above 0"


def _each(of: Any, check: Check, names: Iterable[str], words: str = "{}") -> Iterator[str]:
    for name in names:
        yield from check(words.format(name), getattr(of, name))


def _given(of: Any, names: Iterable[str]) -> list[str]:
    return [name for name in names if getattr(of, name) is not None]


_layers, _positions = partial(_size, most=MOST_LAYERS), partial(_size, most=MOST_POSITIONS)
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads"),
    "head_dim",
)
_OPTIONAL_SIZES = ("sliding_window", "chunk_tokens", "rotary_dim")
_POSITIVE = ("rope_theta", "sliding_rope_theta", "attention_soft_cap", "logit_soft_cap")
_FINITE = (
    *("rms_norm_eps", "embedding_multiplier", "residual_multiplier", "logit_multiplier"),
    "attention_scale",
)
_PARTS = {
    "latent": "latent attention's {}",
    "delta": "Gated DeltaNet's {}",
    "mamba": "Mamba-2's {}",
    "short_conv": "the {} of a convolution",
}
_TOWER_SIZES = (
    *("patch_px", "merge", "temporal_patch", "num_channels", "depth", "hidden_size"),
    *("intermediate_size", "num_heads", "out_hidden_size"),
)
_POSITION_FIELDS: dict[TowerKind, tuple[str, ...]] = {
    "qwen3_vl": ("num_position_embeddings",),
    "qwen2_5_vl": ("window_px",),
    "gemma3": ("num_position_embeddings",),
    "idefics3": ("num_position_embeddings",),
    "pixtral": (),
}


def _problems(config: ModelConfig) -> Iterator[str]:
    """Each check may rely on those before it."""
    yield from _each(config, _layers, ["num_layers"])
    yield from _each(config, _positions, ["max_positions"])
    yield from _each(config, _size, (*_SIZES, *_given(config, _OPTIONAL_SIZES)))
    yield from _layer_problems(config)
    for token_id in config.eos_token_ids:
        if not 0 <= token_id < config.vocab_size:
            yield (
                f"the end-of-text token {token_id} is outside the vocabulary of "
                f"{config.vocab_size} tokens"
            )
    if config.module_config is None:
        yield from _number_problems(config)
    if config.rope_scaling is not None:
        yield from _scaling_problems(config, config.rope_scaling)
    for part, words in _PARTS.items():
        if (sizes := getattr(config, part)) is not None:
            names = [field.name for field in fields(sizes) if field.type == "int"]
            optional = [field.name for field in fields(sizes) if field.type == "int | None"]
            yield from _each(sizes, _size, (*names, *_given(sizes, optional)), words)
    if config.experts is not None:
        yield from _expert_problems(config.experts)
    if (delta := config.delta) is not None and delta.num_value_heads % delta.num_key_heads:
        yield (
            f"{delta.num_value_heads} value heads of Gated DeltaNet cannot share "
            f"{delta.num_key_heads} key heads evenly"
        )
    if (mamba := config.mamba) is not None:
        if mamba.num_heads % mamba.num_groups:
            yield f"{mamba.num_heads} heads of Mamba-2 are not in {mamba.num_groups} equal groups"
        low, high = mamba.step_limit
        if not 0 <= low < high or (math.isfinite(high) and high > LARGEST_NUMBER):
            yield f"Mamba-2's steps are limited to {low} … {high}"


def _layer_problems(config: ModelConfig) -> Iterator[str]:
    for name in ("mixers", "mlps", "layer_kv"):
        listed = getattr(config, name)
        if listed and len(listed) != config.num_layers:
            yield f"{len(listed)} layers are listed ({name}), and there are {config.num_layers}"
    for heads, width in config.layer_kv:
        if heads < 0 or width < 0:
            yield f"a layer has {heads} heads of keys and values, {width} wide"
    if "sliding" in config.mixer_kinds and config.sliding_window is None:
        yield "layers attend within a window whose width is not declared"
    if "chunked" in config.mixer_kinds and config.chunk_tokens is None:
        yield "layers attend within chunks whose length is not declared"
    if "sparse" in config.mlp_kinds and config.experts is None:
        yield "layers have experts that are not declared"


def _number_problems(config: ModelConfig) -> Iterator[str]:
    if config.num_heads % config.num_kv_heads:
        yield (
            f"{config.num_heads} query heads cannot share {config.num_kv_heads} heads of keys and "
            "values evenly"
        )
    rotated = config.rotary_dim or config.head_dim
    if rotated > config.head_dim or rotated % 2:
        yield f"{rotated} features of each head of {config.head_dim} are rotated, in pairs"
    yield from _each(config, _positive, _given(config, _POSITIVE))
    yield from _each(config, _finite, _given(config, _FINITE))
    if config.rms_norm_eps < 0:
        yield f"rms_norm_eps is {config.rms_norm_eps}"
    if (growth := config.query_growth) is not None:
        yield from _finite("the growth of queries", growth.beta)
        if growth.offset < 0:
            yield f"the growth of queries has the offset {growth.offset}"
        yield from _size("the positions of a step of growth", growth.positions)


def _scaling_problems(config: ModelConfig, scaling: RopeScaling) -> Iterator[str]:
    of = f"rope scaling {scaling.kind}"
    yield from _positions(f"{of}: original positions", scaling.original_max_positions)
    factors = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow")
    given = (*factors, *_given(scaling, ["attention_factor"]))
    yield from _each(scaling, _positive, given, f"{of}: {{}}")
    if scaling.low_freq_factor == scaling.high_freq_factor:
        yield f"{of}: low_freq_factor and high_freq_factor are both {scaling.low_freq_factor}"
    if scaling.kind == "yarn" and config.rope_theta <= 1:
        yield f"{of}: the rotary base is {config.rope_theta}, not above 1"
    if scaling.kind == "longrope" and scaling.original_max_positions < 2:
        yield f"{of}: it was trained on {scaling.original_max_positions} position"
    count = (config.rotary_dim or config.head_dim) // 2
    for divisors in (scaling.short_divisors, scaling.long_divisors):
        for divisor in divisors:
            yield from _positive(f"{of}: a divisor", divisor)
        if divisors and len(divisors) != count:
            yield f"{of}: {len(divisors)} divisors for {count} frequencies"


def _expert_problems(experts: ExpertsConfig) -> Iterator[str]:
    yield from _size("the number of experts", experts.num_experts)
    yield from _size("the experts of a token", experts.experts_per_token, experts.num_experts)
    yield from _size("the width of an expert", experts.intermediate_size)
    if experts.shared_intermediate_size is not None:
        yield from _size("the width of the shared expert", experts.shared_intermediate_size)
    yield from _each(experts, _finite, ("weight_scale", "swish_gain"), "{} of experts")
    if experts.limit is not None:
        yield from _positive("the limit of experts' gates", experts.limit)


def _vision_problems(vision: VisionConfig, config: ModelConfig) -> Iterator[str]:
    sizes = (*_TOWER_SIZES, *_POSITION_FIELDS[vision.kind])
    yield from _each(vision, _size, sizes, "the tower's {}")
    yield from _each(vision, _layers, ["depth"], "the tower's {}")
    yield from _positive("what the tower's norms add", vision.norm_eps)
    yield from _positive("what its merger's norm adds", vision.merger_eps)
    if vision.kind not in ("gemma3", "idefics3"):
        yield from _positive("the tower's rope_theta", vision.rope_theta)
    if not 0 <= vision.image_token_id < config.vocab_size:
        yield f"the image token {vision.image_token_id} is outside the vocabulary"
    for values in (vision.image_mean, vision.image_std):
        if len(values) not in (0, vision.num_channels):
            yield f"{len(values)} numbers normalise the {vision.num_channels} channels of an image"
    for value in vision.image_mean:
        yield from _finite("the mean of an image's channel", value)
    for value in vision.image_std:
        yield from _positive("the deviation of an image's channel", value)
    taken = vision.deepstack_layers
    if any(not 0 <= index < vision.depth for index in taken):
        yield f"the tower's output is taken after the blocks {taken} of {vision.depth}"
    if (section := vision.mrope_section) is not None:
        frequencies = (config.rotary_dim or config.head_dim) // 2
        if min(section) < 0 or sum(section) > frequencies:
            yield f"mrope_section {section} is no part of {frequencies} frequencies"
        elif not vision.is_mrope_interleaved and sum(section) != frequencies:
            yield f"mrope_section {section} is not all of {frequencies} frequencies"
