"""Detects the contents of a module's cache by running the module without weights. What our blocks
and state slots do not hold is refused by name before a weight is read.
"""

from __future__ import annotations

import inspect as signatures
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicCache,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from inference.models.config import ModelConfig
from inference.models.errors import UnsupportedModuleError
from inference.models.families.transformers_modules import NAMES
from inference.models.layer_configs import (
    ATTENTION_PART,
    INDEXER_PART,
    OWN_KIND,
    ModuleCache,
    StateEntry,
    TokenEntry,
)
from inference.models.transformers_backend.hub_module import hub_config, without_weights
from inference.models.transformers_backend.storage import (
    compressed_entries,
    compresses_tokens,
    group_states,
    own_states_of,
    state_entry,
)

NUM_ROWS = 5


class NeedsWeightsError(UnsupportedModuleError):
    pass


UNBOUND_CONTEXT_TOKENS = 32_768
TOKEN_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, DynamicIndexedLayer)
STATE_LAYERS = (LinearAttentionLayer,)
MIXED_LAYERS = (
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)
KNOWN_LAYERS = frozenset({*TOKEN_LAYERS, *STATE_LAYERS, *MIXED_LAYERS, DummyLayer})
KNOWN_CACHES = frozenset({"DynamicCache", "MiniMaxCache"})
CACHE_NAMES = ("past_key_values", "cache_params")
"""Among the forward's arguments and among its outputs."""


@dataclass(frozen=True, slots=True)
class Layer:
    kind: type[Any]
    arguments: dict[str, Any]
    num_positions: int = 0
    """Its indexer's numbers of a token's position: equal without images, and not kept here."""


@dataclass(frozen=True, slots=True)
class DetectedCache:
    cache: ModuleCache
    cache_kind: type[Any]
    layers: tuple[Layer, ...]
    vocab_size: int


def detected_config(config: ModelConfig) -> ModelConfig:
    """Unchanged where the module needs weights to run, as some do to choose experts: it is
    inspected again once they are loaded. Raises ``UnsupportedModuleError``."""
    module = without_weights(config)
    try:
        found = detect_cache(module)
    except NeedsWeightsError:
        return config
    return with_detected(config, found)


def with_detected(config: ModelConfig, found: DetectedCache) -> ModelConfig:
    hub = hub_config(config).get_text_config(decoder=True)
    shapes = found.cache.kv_shapes
    num_heads = _number(hub, "num_attention_heads") or 1
    limits = (_number(hub, name) for name in NAMES["max_positions"])
    return replace(
        config,
        vocab_size=found.vocab_size,
        hidden_size=_number(hub, "hidden_size") or config.hidden_size,
        intermediate_size=_number(hub, "intermediate_size") or config.intermediate_size,
        # Layers count by what they keep in blocks: see ``ModuleCache``.
        num_layers=len(shapes),
        num_heads=max(num_heads, shapes[0][0]),
        num_kv_heads=shapes[0][0],
        head_dim=shapes[0][1],
        layer_kv=shapes,
        max_positions=next(filter(None, limits), UNBOUND_CONTEXT_TOKENS),
        module_cache=found.cache,
    )


def detect_cache(module: Any) -> DetectedCache:
    """Raises ``NeedsWeightsError``, ``UnsupportedModuleError``."""
    name, own = type(module).__name__, own_states_of(module)
    given = own.arguments(module, cache=None, states=None)
    found = _run(module, given)
    states = own.left_by(module, found)
    places = (*found.items(), *given.items())
    cache = next((kept for word, kept in places if word in CACHE_NAMES and kept is not None), None)
    if not isinstance(cache, Cache):
        if not states:
            raise UnsupportedModuleError(
                f"transformers' {name} keeps what it has seen in no cache of transformers', but in "
                f"{'nothing' if cache is None else type(cache).__name__}"
            )
        cache = DynamicCache()
    _check_kinds(cache, name)
    return DetectedCache(
        cache=ModuleCache(
            tokens=tuple(_tokens(cache, name)),
            states=(*_states(cache), *_own_states(states)),
        ),
        cache_kind=type(cache),
        layers=tuple(_layer(layer, module) for layer in cache.layers),
        vocab_size=found["logits"].shape[-1],
    )


def _check_kinds(cache: Cache, name: str) -> None:
    unknown = [
        type(layer)
        for layer in cache.layers
        if type(layer) not in KNOWN_LAYERS and not compresses_tokens(type(layer))
    ]
    if unknown or type(cache).__name__ not in KNOWN_CACHES:
        kind = unknown[0] if unknown else type(cache)
        raise UnsupportedModuleError(
            f"transformers' {name} keeps what it has seen in a {kind.__name__}, which neither "
            "blocks nor state slots hold"
        )


@torch.inference_mode()
def _run(module: Any, given: dict[str, Any]) -> Any:
    device = next(module.parameters()).device
    rows = torch.arange(NUM_ROWS, device=device)[None]
    given = {"input_ids": rows, "position_ids": rows, "use_cache": True, **given}
    try:
        return module(**accepted(module, given))
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        kind = NeedsWeightsError if device.type == "meta" else UnsupportedModuleError
        raise kind(f"transformers' {type(module).__name__} does not run: {words}") from error


def accepted(module: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    parameters = signatures.signature(module.forward).parameters
    return {name: value for name, value in arguments.items() if name in parameters}


def _layer(layer: Any, module: Any) -> Layer:
    names = ("sliding_window", "number_of_states")
    arguments = {name: getattr(layer, name) for name in names if hasattr(layer, name)}
    if compresses_tokens(type(layer)):
        arguments = {"config": module.config}
    positions = getattr(layer, "indexer_position_ids", None)
    return Layer(type(layer), arguments, 0 if positions is None else positions.shape[0])


def _tokens(cache: Cache, name: str) -> Iterator[TokenEntry]:
    for index, layer in enumerate(cache.layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is not None and values is not None:
            _check(keys, layer, name)
            shapes = _shape(keys), _shape(values)
            yield TokenEntry(
                layer=index, part=ATTENTION_PART, key_shape=shapes[0], value_shape=shapes[1]
            )
        if (indexed := getattr(layer, "indexer_keys", None)) is not None:
            shape = 1, int(indexed.shape[-1])
            yield TokenEntry(layer=index, part=INDEXER_PART, key_shape=shape, value_shape=(0, 0))
        if compresses_tokens(type(layer)):
            yield from compressed_entries(layer, index)


def _check(keys: torch.Tensor, layer: Any, name: str) -> None:
    num_kept = min(NUM_ROWS, getattr(layer, "sliding_window", NUM_ROWS + 1) - 1)
    if keys.dim() != 4 or keys.shape[0] != 1 or keys.shape[2] != num_kept:
        raise UnsupportedModuleError(
            f"transformers' {name} keeps keys of the shape {tuple(keys.shape)} for {NUM_ROWS} "
            "tokens of one sequence, which blocks do not hold"
        )


def _shape(heads: torch.Tensor) -> tuple[int, int]:
    return int(heads.shape[1]), int(heads.shape[3])


def _states(cache: Cache) -> Iterator[StateEntry]:
    for index, layer in enumerate(cache.layers):
        for kind in ("conv", "recurrent"):
            for place, state in getattr(layer, f"{kind}_states", {}).items():
                if state is not None:
                    yield state_entry(index, kind, place, state.shape[1:], state.dtype)
        if compresses_tokens(type(layer)):
            yield from group_states(layer, index)


def _own_states(states: list[torch.Tensor]) -> Iterator[StateEntry]:
    for place, state in enumerate(states):
        yield state_entry(0, OWN_KIND, place, state.shape[1:], state.dtype)


def _number(hub: Any, name: str) -> int | None:
    found = getattr(hub, name, None)
    return found if isinstance(found, int) and found > 0 else None
