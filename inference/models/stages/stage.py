"""The interface of a stage, whichever process computes it: hidden rows in, and out; and each
stage's part of a step and of an adapter. Copies nothing between devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch

from inference.models.adapter import AdapterWeights
from inference.models.backend import KV, BackendSampler, StepBackend
from inference.models.stages.layer_range import LayerRange
from inference.models.step_input import StepImages, StepInput
from inference.models.vision.towers import AnyTower


class Stage(StepBackend[KV], Protocol[KV]):
    """A run of a model's layers. ``config`` and the names of adapters' weights are of these layers,
    counted from their first; ``dtype`` is that of hidden rows."""

    def forward_rows(self, step: StepInput, hidden: torch.Tensor | None, kv: KV) -> torch.Tensor:
        """Writes all rows' keys and values, returns the last layer's output for
        ``step.logit_rows``: (num_logits, hidden_size) on the stage's device, in its dtype.
        ``hidden`` (num_rows, hidden_size), there too: the output of the layers before these;
        ``None`` for the first stage, which embeds ``step.token_ids``. Raises ``PositionError``."""
        ...


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


AnyFirstStage = FirstStage[Any]


def step_of_stage(step: StepInput, layers: LayerRange, index: int, *, is_last: bool) -> StepInput:
    """``index``: among the stages. The last one gives the rows whose logits are wanted, all others
    give all rows. A step's adapters are tuples, with one for each stage."""
    adapters = step.adapters
    if adapters is not None:
        adapters = tuple(None if each is None else each[index] for each in adapters)
        adapters = None if all(each is None for each in adapters) else adapters
    return replace(
        step,
        logit_rows=step.logit_rows if is_last else None,
        adapters=adapters,
        unread_ids=step.unread_ids if layers.is_first else None,
        images=None if step.images is None else _images_of(step.images, layers),
    )


def _images_of(images: StepImages, layers: LayerRange) -> StepImages:
    """Returns the images with the tower's rows for these layers."""
    if images.rows is None or (layers.is_first and len(images.rows.deepstack) <= len(layers)):
        return images
    deepstack = images.rows.deepstack[layers.first : layers.last]
    return replace(images, rows=replace(images.rows, deepstack=deepstack))


def adapter_of_stage(weights: AdapterWeights, layers: LayerRange) -> AdapterWeights | None:
    """The stage's part of the adapter, by the stage's names; ``None``: nothing."""
    own = ((layers.own_name(name), module) for name, module in weights.modules.items())
    modules = {name: module for name, module in own if name is not None}
    return AdapterWeights(modules) if modules else None
