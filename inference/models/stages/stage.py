"""What a model of stages asks of each, whichever process computes it: hidden rows in, and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import torch

from inference.models.adapter import AdapterWeights
from inference.models.backend import BackendSampler, KVStorage
from inference.models.cache.kv_format import KVFormat
from inference.models.config import ModelConfig
from inference.models.remote_device import AnyDevice
from inference.models.step_input import StepInput
from inference.models.vision.build import AnyTower

KV = TypeVar("KV", bound=KVStorage)


class Stage(Protocol[KV]):
    """A run of a model's layers. ``config`` and the names of adapters' weights are of these layers,
    counted from their first."""

    config: ModelConfig

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of hidden rows."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def kv_format(self) -> KVFormat: ...

    @property
    def copies_context(self) -> bool: ...

    @property
    def has_own_threads(self) -> bool: ...

    def new_kv(self, num_blocks: int, block_tokens: int, num_state_slots: int = 0) -> KV: ...

    def cache_bytes(
        self, num_blocks: int, block_tokens: int, num_state_slots: int = 0
    ) -> Mapping[AnyDevice, int]: ...

    def prepare_adapter(self, weights: AdapterWeights) -> Any: ...

    def forward_rows(self, step: StepInput, hidden: torch.Tensor | None, kv: KV) -> torch.Tensor:
        """Writes all rows' keys and values, returns what the last layer gives for
        ``step.logit_rows``: (num_logits, hidden_size) on the stage's device, in its dtype.
        ``hidden`` (num_rows, hidden_size), there too: what the layers before these gave; ``None``
        for the first stage, which embeds ``step.token_ids``. Raises ``PositionError``."""
        ...

    def sleep(self) -> None: ...

    def wake(self) -> None: ...


class FirstStage(Stage[KV], Protocol[KV]):
    """The stage that has the embeddings, the output head, the sampler and the tower."""

    @property
    def tower(self) -> AnyTower | None: ...

    @property
    def sampler(self) -> BackendSampler | None: ...

    def head_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits, (num_rows, vocab_size) float32, of rows behind the model's last
        layer, (num_rows, hidden_size)."""
        ...


AnyStage = Stage[Any]
AnyFirstStage = FirstStage[Any]
