"""States that modules of transformers keep apart from the layers of transformers' cache, each in a
form of its own: how they are passed to a module, and where it leaves the new ones.

    states ─▶ arguments ─▶ the module's forward ─▶ left_by ─▶ states

All are tensors of one shape however long the sequence is, so they lie in state slots like others.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers.cache_utils import Cache, DynamicCache


class OwnStates(Protocol):
    def arguments(
        self, module: Any, cache: Cache | None, states: list[torch.Tensor] | None
    ) -> dict[str, Any]:
        """Arguments with which the module's forward continues from ``states``, which it may change:
        ``None`` before a sequence's first token. ``cache``: ours, ``None`` where the module makes
        one."""

    def left_by(self, module: Any, output: Any) -> list[torch.Tensor]:
        """(1, ...) each, always in the same order."""


class NoStates:
    """All that the module keeps lies in the layers of transformers' cache."""

    def arguments(
        self, module: Any, cache: Cache | None, states: list[torch.Tensor] | None
    ) -> dict[str, Any]:
        return {} if cache is None else {"past_key_values": cache, "cache_params": cache}

    def left_by(self, module: Any, output: Any) -> list[torch.Tensor]:
        return []


class StateArgument:
    """RWKV takes a list of tensors as an argument and gives it back. Each is of all layers."""

    def arguments(
        self, module: Any, cache: Cache | None, states: list[torch.Tensor] | None
    ) -> dict[str, Any]:
        return {"state": states}

    def left_by(self, module: Any, output: Any) -> list[torch.Tensor]:
        return list(output.state)


class RecurrentCache:
    """xLSTM has a cache of its own, which is no ``Cache``: several tensors a layer."""

    def arguments(
        self, module: Any, cache: Cache | None, states: list[torch.Tensor] | None
    ) -> dict[str, Any]:
        if states is None:
            return {}
        from transformers.models.xlstm.modeling_xlstm import xLSTMCache

        made = xLSTMCache(module.config, 1, dtype=states[0].dtype, device=states[0].device)
        for kept, state in zip(self._tensors(made), states, strict=True):
            kept.copy_(state)
        return {"cache_params": made}

    def left_by(self, module: Any, output: Any) -> list[torch.Tensor]:
        return self._tensors(output.cache_params)

    def _tensors(self, cache: Any) -> list[torch.Tensor]:
        return [tensor for layer in cache.rnn_state.values() for tensor in layer]


class BesideLayers:
    """MiniMax's cache has a list beside its layers: a tensor for each layer of linear attention."""

    def arguments(
        self, module: Any, cache: Any, states: list[torch.Tensor] | None
    ) -> dict[str, Any]:
        if cache is None:
            return {}
        left = iter(states or ())
        cache.linear_cache = [
            next(left, None) if kind == "linear_attention" else None
            for kind in module.config.layer_types
        ]
        return {"past_key_values": cache}

    def left_by(self, module: Any, output: Any) -> list[torch.Tensor]:
        kept = output.past_key_values.linear_cache
        return [state for state in kept if isinstance(state, torch.Tensor)]


class ModuleAttributes:
    """RecurrentGemma keeps two tensors in attributes of each of its recurrent blocks."""

    def arguments(
        self, module: Any, cache: Cache | None, states: list[torch.Tensor] | None
    ) -> dict[str, Any]:
        left = iter(states or ())
        for block in self._blocks(module):
            block.conv1d_state = next(left, None)
            block.rg_lru.recurrent_states = next(left, None)
        # Without a cache the module makes one, and does not give it back.
        return {"past_key_values": DynamicCache(config=module.config) if cache is None else cache}

    def left_by(self, module: Any, output: Any) -> list[torch.Tensor]:
        return [
            state
            for block in self._blocks(module)
            for state in (block.conv1d_state, block.rg_lru.recurrent_states)
        ]

    def _blocks(self, module: Any) -> list[Any]:
        blocks = (layer.temporal_block for layer in module.model.layers)
        return [block for block in blocks if hasattr(block, "conv1d_state")]


OWN_STATES: dict[str, OwnStates] = {
    "minimax": BesideLayers(),
    "recurrent_gemma": ModuleAttributes(),
    "rwkv": StateArgument(),
    "xlstm": RecurrentCache(),
}
"""Model type -> how its module keeps states of its own."""


def own_states_of(module: Any) -> OwnStates:
    return OWN_STATES.get(module.config.model_type, NoStates())
