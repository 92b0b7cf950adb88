"""One load: its claim on memory, its granted memory, and the spec for its engine. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from inference.loading.sources.hub_sources import is_of_hub
from inference.neuron.loads.needs import full_name
from inference.protocol.load import LoadSpec, StageSpec, own_stages
from inference.protocol.load_report import AsleepBytes, LoadReport


@dataclass(slots=True, eq=False)
class StagePart:
    """What a load of several stages takes of one device beside its first, as an owner of memory."""

    load: Load


@dataclass(slots=True, eq=False)
class Load:
    """One replica's place in the queue and its claim on memory, as long as it lives."""

    spec: LoadSpec
    devices: tuple[str, ...] = ()
    """Where it is or was going."""
    pid: int | None = None
    """Its engine's, while one runs."""
    free_at_start: dict[str, int] = field(default_factory=dict)
    """Free bytes on its devices when the load began."""
    free_before: dict[str, int] = field(default_factory=dict)
    """The same within the operator's limits, kept after the load has ended."""
    is_settled: bool = False
    """Whether it has been loaded, and it is known what that took."""
    weights: tuple[Path, ...] = ()
    """The weight files in the cache of downloads."""
    file_bytes: int | None = None
    """The size of its weight files, once they are on the disk; ``None``: not read yet."""
    new_files: dict[str, list[str]] = field(default_factory=dict)
    """Files that were downloaded for it alone: as in ``inference.loading.sources.fetch``."""
    file_identity: str | None = None
    """The identity of its files on this disk, as they were when the load began
    (``source_identity``)."""
    took: dict[str, int] = field(default_factory=dict)
    """Bytes that it had taken of each of its devices when it was loaded; empty: not measured."""
    asleep: AsleepBytes | None = None
    """What it holds, while it sleeps."""
    parts: dict[str, StagePart] = field(default_factory=dict)
    """The claims of a load of several stages on devices beside its first, by their names."""

    @property
    def took_bytes(self) -> int:
        """What it had taken of its first device: ranks take the same of each."""
        return self.took.get(self.devices[0], 0) if self.devices else 0

    def owner_on(self, device: str) -> Load | StagePart:
        """Returns the owner of the load's claim on ``device``: a stage's part, or the load
        itself."""
        return self.parts.get(device, self)

    def claim(self, devices: Sequence[str]) -> None:
        """Sets the devices it goes to. Ranks, which take the same of each device, have one claim on
        all; stages have one each."""
        self.devices = tuple(devices)
        others = devices[1:] if self.spec.stages else ()
        self.parts = {name: self.parts.get(name) or StagePart(self) for name in others}

    def claimed(self) -> dict[Load | StagePart, tuple[str, ...]]:
        """Returns its claims, each with its devices."""
        if not self.spec.stages:
            return {self: self.devices}
        return {self.owner_on(name): (name,) for name in self.devices}


@dataclass(frozen=True, slots=True)
class HostPart:
    """The weights of a model that sleeps, as an owner of the host's memory."""

    load: Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a load may take of the devices that it goes to, by their names."""

    limits: Mapping[str, int]
    """The most bytes that it may take."""
    promised: Mapping[str, int]
    """Bytes of the free memory that it may not take: they are promised to others, or beyond the
    operator's limit."""

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.limits)

    @property
    def limit_bytes(self) -> int:
        """What it may take of each."""
        return min(self.limits.values())

    @property
    def promised_bytes(self) -> int:
        return max(self.promised.values())

    def largest_bytes(self, spec: LoadSpec) -> int:
        """The size of a model that may fit: stages add up their devices."""
        return sum(self.limits.values()) if spec.stages else self.limit_bytes


def spec_for_engine(load: Load, room: Room) -> LoadSpec:
    """A file that was fetched has been compared with its hash: large ones take minutes. A wheel's
    hash is also its name in the cache."""
    is_checked = bool(load.weights) and is_of_hub(load.spec.source)
    return msgspec.structs.replace(
        load.spec,
        sha256=None if is_checked else load.spec.sha256,
        devices=list(room.devices),
        promised_bytes=room.promised_bytes,
        memory_limit_bytes=room.limit_bytes,
        stages=_stages_for_engine(load.spec, room),
    )


def _stages_for_engine(spec: LoadSpec, room: Room) -> list[StageSpec]:
    """All of them, in their order: those of other neurons as they are."""
    own = own_stages(spec)
    return [_stage_for_engine(one, room) if one in own else one for one in spec.stages]


def _stage_for_engine(stage: StageSpec, room: Room) -> StageSpec:
    device = full_name(stage.device)
    return msgspec.structs.replace(
        stage,
        device=device,
        promised_bytes=room.promised[device],
        memory_limit_bytes=room.limits[device],
    )


def took_by_device(load: Load, report: LoadReport) -> dict[str, int]:
    """Bytes that a finished load took of each of its devices; empty where it measured nothing."""
    if report.actual_bytes == 0:
        return {}
    if load.spec.stages:
        return {one.device: one.process_bytes + one.actual_bytes for one in report.stage_memory}
    took_bytes = report.process_bytes + report.actual_bytes
    return dict.fromkeys(load.devices, took_bytes // max(1, len(load.devices)))
