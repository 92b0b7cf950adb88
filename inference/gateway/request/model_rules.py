"""What a model's entry means for a request: its task, its vision, the operator's sampling defaults.

Defaults fill what a request does not name itself. They are applied where a request is sent, so a
change of them needs no reload, and an upstream gets those that its dialect has words for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.settings import Task
from fleet.upstreams.entry import UpstreamEntry
from fleet.upstreams.rules import untranslated_defaults
from inference.gateway.gateway import Gateway
from inference.protocol.generation import GenerationRequest, Request
from inference.protocol.heartbeat import ReplicaStatus
from inference.wire.common.parts import ImageFile
from inference.wire.errors import InvalidRequestError, VisionUnsupportedError
from inference.wire.openai.passed.endpoints import paths_of


def check_task(entry: CatalogueEntry, task: Task) -> None:
    if entry.task == task:
        return
    where = paths_of(entry.task) or "the endpoints of text"
    raise InvalidRequestError(
        f"{entry.name} is a model of {entry.task}, and this endpoint needs one of {task}. It "
        f"answers at {where}.",
        param="model",
    )


async def check_sees(gateway: Gateway, entry: CatalogueEntry, files: Sequence[ImageFile]) -> None:
    """Refuses before anything is placed, where a replica has reported its vision: the same files
    may be another model on none. Raises ``VisionUnsupportedError``."""
    snapshot = await gateway.liveness.placing_snapshot()
    ready = [
        replica
        for replica in snapshot.replicas_of(entry.name)
        if replica.status is ReplicaStatus.READY
    ]
    if ready and not any("vision" in replica.capabilities for replica in ready):
        raise VisionUnsupportedError(files[0].path)


def with_sampling_defaults(request: Request, defaults: Mapping[str, float]) -> Request:
    """``defaults`` are by the names of ``SamplingOptions``. The neuron fills fields that are still
    unset from the model's own files."""
    if not isinstance(request, GenerationRequest):
        return request
    options = request.sampling
    missing = {name: value for name, value in defaults.items() if getattr(options, name) is None}
    if not missing:
        return request
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(options, **missing))


def without_cache_marks(request: Request) -> Request:
    if not isinstance(request, GenerationRequest) or not request.cache_marks:
        return request
    return msgspec.structs.replace(request, cache_marks=[])


def with_defaults_at(request: Request, entry: CatalogueEntry, upstream: UpstreamEntry) -> Request:
    defaults = entry.sampling_defaults
    left_out = untranslated_defaults(upstream.dialect, defaults)
    kept = {name: value for name, value in defaults.items() if name not in left_out}
    return with_sampling_defaults(request, kept)
