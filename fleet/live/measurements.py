"""Measurements of a model's loads by neuron, as plain data, and estimates of a present load by the
last one of that model on that neuron.

Placement uses them for a model that is not loaded, and the next load starts from them.

Pure: no ORM, no clock, no I/O. ``fleet.models.job`` stores them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from inference.protocol.load import EarlierLoads, PrefillSpeed
from inference.protocol.load_progress import LoadStage

DeviceKind = Literal["cpu", "cuda"]

SHORTEST_CONTEXT_TOKENS = 256
"""A neuron refuses a model if KV of this length does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """The last load of one model on one neuron."""

    neuron: str
    device_kind: DeviceKind
    load_bytes: int
    """All but KV: weights, tables, the activations of the largest step."""
    process_bytes: int
    """Memory of the engine process itself, beside that."""
    kv_token_bytes: int
    """KV bytes of one token over all layers; 0 for a model without KV."""
    memory_correction_bytes: int
    """Bytes by which an estimate from the files is too low."""
    load_s: float | None = None
    """Seconds from its engine's start until it was loaded; ``None`` where they were not
    measured."""
    prefill_speed: PrefillSpeed | None
    """Average over the requests since; ``None`` where there were none."""
    context_tokens: int | None = None
    """The enforced limit; ``None`` where it was not recorded."""
    capabilities: tuple[str, ...] | None = None
    """``None`` where they were not recorded."""

    def needed_bytes(self, kv_memory_bytes: int | None) -> int:
        """Free bytes needed for another such load, with that KV or with the least useful."""
        kv_bytes = self.kv_token_bytes * SHORTEST_CONTEXT_TOKENS
        return self.load_bytes + self.process_bytes + (kv_memory_bytes or kv_bytes)

    def earlier_loads(self, neuron: str, kv_memory_bytes: int | None = None) -> EarlierLoads:
        """The prediction of a load on ``neuron`` with that KV. Speeds of other machines are left
        out."""
        return EarlierLoads(
            device_kind=self.device_kind,
            needed_bytes=self.needed_bytes(kv_memory_bytes),
            memory_correction_bytes=self.memory_correction_bytes,
            prefill_speed=self.prefill_speed if neuron == self.neuron else None,
        )


def measured_for(
    loads: Iterable[MeasuredLoad], neuron: str, device_kind: DeviceKind | None = None
) -> MeasuredLoad | None:
    """The measurement for that neuron: its own load, else the largest of another with a device of
    that kind (of any kind, if ``device_kind`` is ``None``)."""
    fitting = [load for load in loads if device_kind in (None, load.device_kind)]
    own = [load for load in fitting if load.neuron == neuron]
    return max(own or fitting, key=lambda load: (load.load_bytes, load.neuron), default=None)


BEFORE_ENGINE = frozenset({LoadStage.QUEUED, LoadStage.DOWNLOADING})
OF_A_LOAD = frozenset(
    {LoadStage.STARTING, LoadStage.PREFLIGHT, LoadStage.WEIGHTS, LoadStage.WARMUP}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadEstimate:
    """Estimates of a load; ``None``: unknown."""

    share: float | None = None
    """The completed share of the whole load, 0 to 1."""
    left_s: float | None = None


NO_ESTIMATE = LoadEstimate()


def load_estimate(
    *,
    stage: str,
    done: int,
    total: int,
    stage_elapsed_s: float | None,
    engine_elapsed_s: float | None,
    last_load_s: float | None,
) -> LoadEstimate:
    """``engine_elapsed_s``: since the load's engine started; ``last_load_s``: from an engine's
    start to its end, when it was last loaded there.

    An engine starts, reads headers and warms up without a rate: then only the last load's duration
    is known. Once this load takes longer, the rate of its stage counts, if it has one."""
    stage_left_s = None if stage_elapsed_s is None else remaining_s(stage_elapsed_s, done, total)
    if stage in BEFORE_ENGINE:
        left_s = None if stage_left_s is None else stage_left_s + (last_load_s or 0.0)
        return LoadEstimate(left_s=left_s)
    is_as_usual = (
        stage in OF_A_LOAD
        and last_load_s is not None
        and engine_elapsed_s is not None
        and engine_elapsed_s < last_load_s
    )
    if not is_as_usual:
        return LoadEstimate(left_s=stage_left_s)
    assert last_load_s is not None and engine_elapsed_s is not None
    return LoadEstimate(
        share=max(0.0, engine_elapsed_s) / last_load_s,
        left_s=last_load_s - max(0.0, engine_elapsed_s),
    )


def remaining_s(elapsed_s: float, done: int, total: int) -> float | None:
    """A linear estimate of the remaining seconds; ``None`` without a rate."""
    if elapsed_s <= 0 or done <= 0 or total <= 0:
        return None
    return max(0.0, elapsed_s * (total - done) / done)
