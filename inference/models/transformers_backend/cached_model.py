"""A decoder of transformers that keeps what it has seen in transformers' own cache, over our blocks
and state slots: the ``Model`` of ``registry`` for modules whose layers do not all attend through
transformers' attention interface.

The rows of a step are computed one sequence after the other.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from inference.models.adapter import AdapterWeights
from inference.models.backend import PlainBackend
from inference.models.cache.kv_format import KVFormat
from inference.models.config import ModelConfig
from inference.models.families.transformers_types import ROW_BY_ROW_TYPES
from inference.models.layers.rope import POSITIONS_MULTIPLE
from inference.models.step_input import StepInput, check_positions
from inference.models.to_device import all_on_device
from inference.models.transformers_backend.hub_module import load_module, no_adapters
from inference.models.transformers_backend.learning import accepted, learn, with_learnt
from inference.models.transformers_backend.own_states import own_states_of
from inference.models.transformers_backend.sequence_cache import SequenceCache, sequence_cache
from inference.models.transformers_backend.storage import ModuleStorage, SequenceRows, sequences_of
from inference.models.weights.weight_source import WeightSource


class CachedModel(PlainBackend):
    copies_context = True

    def __init__(
        self, config: ModelConfig, weights: WeightSource, context_tokens: int, kv_format: KVFormat
    ) -> None:
        """Raises ``UnsupportedModuleError`` and ``MissingWeightsError``."""
        self.dtype = weights.activation_dtype
        self.device = weights.device
        self.kv_format = kv_format
        self._num_positions = -(-context_tokens // POSITIONS_MULTIPLE) * POSITIONS_MULTIPLE
        loaded = load_module(config, weights, attention=None)
        self._module, self._passed_over = loaded.module, loaded.passed_over
        found = learn(self._module)
        self.config = with_learnt(config, found)
        self._learnt = found
        self._own_states = own_states_of(self._module)
        self._continues_by_rows = config.architecture in ROW_BY_ROW_TYPES

    @property
    def execution(self) -> str:
        """Describes how the module runs."""
        rows = ", row by row where a prompt continues" if self._continues_by_rows else ""
        return (
            f"transformers' {type(self._module).__name__} with its own cache, one sequence after "
            f"the other{rows}: much slower than a family that this build computes itself"
            f"{self._passed_over}"
        )

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int = 0) -> ModuleStorage:
        return ModuleStorage(
            self.config, num_blocks, block_tokens, self.kv_format, self.device, num_state_slots
        )

    def prepare_adapter(self, weights: AdapterWeights) -> NoReturn:
        """Raises ``UnsupportedAdapterError``."""
        raise no_adapters(self.config)

    @torch.inference_mode()
    def forward(self, step: StepInput, kv: ModuleStorage) -> torch.Tensor:
        """Raises ``PositionError``."""
        check_positions(step.longest_context, self._num_positions)
        step = step.with_all_ids()
        arrays = [step.token_ids, step.positions, step.slots, step.block_table]
        token_ids, positions, slots, block_table = all_on_device(self.device, indices=arrays)
        inputs = {"input_ids": token_ids, "position_ids": positions}
        wanted = range(len(token_ids)) if step.logit_rows is None else step.logit_rows.tolist()
        logits = torch.empty(
            (len(wanted), self.config.vocab_size), dtype=torch.float32, device=self.device
        )
        for rows in sequences_of(step, slots, block_table):
            places = [i for i, row in enumerate(wanted) if rows.first_row <= row < rows.last_row]
            kept = [wanted[place] - rows.first_row for place in places]
            found = self._run(inputs, rows, kept, kv)
            if places:
                logits[places] = found.float()
        return logits

    def _run(
        self,
        inputs: dict[str, torch.Tensor],
        rows: SequenceRows,
        kept: list[int],
        kv: ModuleStorage,
    ) -> torch.Tensor:
        """The logits of those of the sequence's rows that are ``kept``."""
        cache = sequence_cache(self._learnt, kv, rows, self.dtype)
        at_once = rows.last_row - rows.first_row
        if self._continues_by_rows and rows.start:
            at_once = 1
        parts = []
        for first in range(rows.first_row, rows.last_row, at_once):
            part = slice(first, min(first + at_once, rows.last_row))
            inner = [
                row + rows.first_row - first
                for row in kept
                if part.start <= row + rows.first_row < part.stop
            ]
            parts.append(self._forward(inputs, part, inner, cache))
        cache.save_states()
        return torch.cat(parts)

    def _forward(
        self, inputs: dict[str, torch.Tensor], part: slice, kept: list[int], cache: SequenceCache
    ) -> torch.Tensor:
        keep: Any = torch.tensor(kept, dtype=torch.int64, device=self.device)
        arguments = accepted(
            self._module,
            {
                **{name: rows[None, part] for name, rows in inputs.items()},
                "use_cache": True,
                "logits_to_keep": keep,
                **self._own_states.arguments(self._module, cache, cache.own_states),
            },
        )
        output = self._module(**arguments)
        cache.own_states = self._own_states.left_by(self._module, output)
        logits: torch.Tensor = output.logits[0]
        return logits if "logits_to_keep" in arguments else logits.index_select(0, keep)
