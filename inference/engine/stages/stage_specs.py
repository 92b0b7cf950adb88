"""The load specs of a model's stages, and what a model of several stages cannot do."""

from __future__ import annotations

import msgspec

from inference.engine.stages.other_hosts import check_links
from inference.loading.progress import OnProgress
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadSourceError
from inference.protocol.load_progress import LoadProgress


def check_stages(spec: LoadSpec) -> None:
    """Raises ``BadSourceError`` for each feature, by name, that several stages do not have, and for
    links to other hosts that the load does not describe."""
    check_links(spec)
    if not spec.stages:
        return
    if spec.tensor_parallel > 1:
        raise BadSourceError(
            "stages and tensor_parallel exclude each other; set tensor_parallel to 1"
        )
    if spec.speculation in ("draft_model", "mtp"):
        raise BadSourceError(
            f"speculation {spec.speculation} is not built for a model of several stages; set it to "
            "prompt_lookup or off"
        )
    if spec.prefix_disk_bytes is not None:
        raise BadSourceError(
            "prefix_disk_bytes is not built for a model of several stages; leave it empty"
        )


def check_undivided(spec: LoadSpec) -> None:
    """Raises ``BadSourceError`` where a model that makes embeddings is to have stages."""
    if spec.stages:
        raise BadSourceError("a model that makes embeddings is not divided into stages")


def stage_progress(spec: LoadSpec, stage: int, on_progress: OnProgress) -> OnProgress:
    """``on_progress``, with the stage that it is about in its detail; itself, without stages."""
    if not spec.stages:
        return on_progress
    own = spec.stages[stage]
    first, last = own.layers
    where = f"layers {first} to {last - 1} on {own.device}"
    where += f" of {own.neuron}" if own.neuron else ""
    words = f"stage {stage + 1} of {len(spec.stages)}: {where}"

    def report(progress: LoadProgress) -> None:
        detail = f"{words}; {progress.detail}" if progress.detail else words
        on_progress(msgspec.structs.replace(progress, detail=detail))

    return report


def spec_of_stage(spec: LoadSpec, stage: int) -> LoadSpec:
    """``spec`` as of the one device that the stage is on; itself, without stages. What earlier
    loads took of one device stands for no part of the model, and what keys and values may take is
    shared out over the stages later."""
    if not spec.stages:
        return spec
    own = spec.stages[stage]
    return msgspec.structs.replace(
        spec,
        devices=[own.device],
        promised_bytes=own.promised_bytes,
        memory_limit_bytes=own.memory_limit_bytes,
        earlier_loads=None,
        kv_memory_bytes=None,
    )
