"""What each stage gets of a step, and of an adapter. Pure: nothing is copied between devices."""

from __future__ import annotations

from dataclasses import replace

from inference.models.adapter import AdapterWeights
from inference.models.stages.layer_range import LayerRange
from inference.models.step_input import StepImages, StepInput


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
    """Returns the images with what the tower adds after these layers."""
    if images.rows is None or (layers.is_first and len(images.rows.deepstack) <= len(layers)):
        return images
    deepstack = images.rows.deepstack[layers.first : layers.last]
    return replace(images, rows=replace(images.rows, deepstack=deepstack))


def adapter_of_stage(weights: AdapterWeights, layers: LayerRange) -> AdapterWeights | None:
    """What it changes of the stage, by the stage's names; ``None``: nothing."""
    own = ((layers.own_name(name), module) for name, module in weights.modules.items())
    modules = {name: module for name, module in own if name is not None}
    return AdapterWeights(modules) if modules else None
