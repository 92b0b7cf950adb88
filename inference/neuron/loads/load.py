"""One load: its claim on memory, its granted memory, and the spec for its engine. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from inference.protocol.load import AsleepBytes, LoadSpec


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
    """In the cache of downloads."""
    file_bytes: int | None = None
    """Of its weight files, once they are on the disk; ``None``: not read yet."""
    new_files: dict[str, list[str]] = field(default_factory=dict)
    """Files that were downloaded for it alone: as in ``inference.loading.sources.fetch``."""
    file_identity: str | None = None
    """Of its files on this disk, as they were when the load began (``source_identity``)."""
    took_bytes: int = 0
    """What it had taken of its device when it was loaded."""
    asleep: AsleepBytes | None = None
    """What it holds, while it sleeps."""


@dataclass(frozen=True, slots=True)
class HostPart:
    """The weights of a model that sleeps, as an owner of the host's memory."""

    load: Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a load may take of the devices that it goes to."""

    devices: tuple[str, ...]
    limit_bytes: int
    """What it may take of each."""
    promised_bytes: int
    """What of each one's free memory it may not take: it is promised to others, or beyond the
    operator's limit."""


def spec_for_engine(load: Load, room: Room) -> LoadSpec:
    """A file that was fetched has been compared with its hash: large ones take minutes. A wheel's
    hash is also its name in the cache."""
    is_checked = bool(load.weights) and load.spec.source.startswith("huggingface:")
    return msgspec.structs.replace(
        load.spec,
        sha256=None if is_checked else load.spec.sha256,
        devices=list(room.devices),
        promised_bytes=room.promised_bytes,
        memory_limit_bytes=room.limit_bytes,
    )
