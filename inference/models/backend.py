"""The interface between the engine and whatever computes a model. Code outside ``inference.models``
does not ask which it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from inference.models.adapter import AdapterWeights
from inference.models.config import ModelConfig
from inference.models.kv_format import KVFormat, cache_bytes, kv_bytes_per_block
from inference.models.native.structs import Draw
from inference.models.step_input import StepInput
from inference.models.vision_tower import Tower


@dataclass(frozen=True, slots=True)
class RemoteDevice:
    neuron: str
    device: torch.device
    """The device's name on that host."""

    @property
    def type(self) -> str:
        return self.device.type

    def __str__(self) -> str:
        return f"{self.device} of {self.neuron}"


AnyDevice = torch.device | RemoteDevice


def name_of(device: AnyDevice) -> str:
    return str(device.device if isinstance(device, RemoteDevice) else device)


class KVStorage(Protocol):
    """Tensors behind the blocks; their layout is the model's own business."""

    @property
    def block_tokens(self) -> int: ...

    def block(self, block_id: int) -> dict[str, torch.Tensor]:
        """Views of one block's keys and values, by name; writing to them changes it."""
        ...


class BackendSampler(Protocol):
    """Sampling in the backend's own code: see ``NativeDecoder``."""

    def likeliest(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...

    def forbid(self, scores: torch.Tensor, rows: Sequence[int], bits: torch.Tensor) -> None: ...

    def draw(self, scores: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor: ...


class PlainBackend:
    """A model of whichever backend. Not thread-safe: the engine's owner thread calls it. Which KV
    storage it wants is between its own methods; callers hand back what they got. The defaults are
    for backends that capture no steps and sample nothing."""

    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    kv_format: KVFormat
    tower: Tower | None = None
    has_own_threads = False
    """Whether steps run on the backend's own threads, beside which torch's would spin."""

    @property
    def copies_context(self) -> bool:
        """Whether keys and values are copied out of their blocks: memory grows with contexts."""
        raise NotImplementedError

    @property
    def sampler(self) -> BackendSampler | None:
        """``None``: the engine samples with what suits the device."""
        return None

    @property
    def capture_in_words(self) -> str:
        """Empty for a backend that captures no steps."""
        return ""

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int = 0) -> Any:
        """Zeroed. ``num_state_slots``: states of recurrent layers."""
        raise NotImplementedError

    def cache_bytes(
        self, num_blocks: int, block_tokens: int, num_state_slots: int = 0
    ) -> Mapping[AnyDevice, int]:
        """Bytes of ``new_kv`` on each device; ``device`` is first."""
        sizes = num_blocks, block_tokens, num_state_slots
        return {self.device: cache_bytes(self.config, self.kv_format, *sizes)}

    def prepare_adapter(self, weights: AdapterWeights) -> Any:
        """Converts an adapter of checked names and shapes for ``StepInput.adapters``. Any thread
        may call it while the model is stepped. Raises ``UnsupportedAdapterError``."""
        raise NotImplementedError

    def forward(self, step: StepInput, kv: Any) -> torch.Tensor:
        """Writes all rows' keys and values, returns ``step.logit_rows``' logits: (num_logits,
        vocab_size) float32. Raises ``PositionError``."""
        raise NotImplementedError

    def forward_with_hidden(self, step: StepInput, kv: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Also the head's input, (num_rows, hidden_size). Only for models with a predictor."""
        raise NotImplementedError("no predictor is built for this backend")

    def capture(self, kv: Any, *, max_rows: int, context_tokens: int) -> None:
        pass

    def captured_bytes(self, max_rows: int) -> int:
        return 0

    def sleep(self) -> None:
        """Release what ``wake`` or ``capture`` makes again. The weights stay where they are."""

    def wake(self) -> None:
        """Undoes ``sleep``, before the next step. Raises ``MemoryError``."""


AnyModel = PlainBackend


class Predictor:
    """May share the model's tables. The engine's owner thread calls it."""

    config: ModelConfig
    """Of its one layer."""
    device: torch.device
    kv_format: KVFormat
    num_positions: int
    """Rows at this position and later ones are not computed."""

    def new_kv(self, num_blocks: int, block_tokens: int) -> Any:
        raise NotImplementedError

    def block_bytes(self, block_tokens: int) -> int:
        return kv_bytes_per_block(self.config, block_tokens, self.kv_format)

    def forward(self, step: StepInput, hidden: torch.Tensor, kv: Any) -> torch.Tensor:
        """``step`` has token i + 1 at position i; ``hidden`` (num_rows, hidden_size) is the head's
        input at i. Writes keys and values, returns its predicted inputs at i + 1, of the same
        shape."""
        raise NotImplementedError

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """(num_rows, hidden_size), as ``forward`` gives them -> (num_rows, vocab_size) float32."""
        raise NotImplementedError

    def sleep(self) -> None:
        pass

    def wake(self) -> None:
        """Raises ``MemoryError``."""
