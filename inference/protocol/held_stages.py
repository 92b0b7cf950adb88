"""What a neuron reports of the stages that it holds for engines of other neurons.

A held stage is no replica: no request goes to it. Its engine is on ``engine_neuron``.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from inference.protocol.load_progress import LoadFailure, LoadProgress


class HeldStageStatus(StrEnum):
    """One table of legal moves; anything else is our bug.

    LOADING ─▶ LISTENING ─▶ READY ─▶ (gone)      its engine has ended, or it was released
       │           │
       └─▶ FAILED ◀┘ ─▶ (gone)                   forgotten after a while, or when ordered again
    """

    LOADING = "loading"
    """Its files are fetched, its turn comes, its memory is reserved."""
    LISTENING = "listening"
    """Its memory is reserved, and its process waits for its engine, or reads its weights."""
    READY = "ready"
    FAILED = "failed"


HELD_STAGE_TRANSITIONS: dict[HeldStageStatus, frozenset[HeldStageStatus]] = {
    HeldStageStatus.LOADING: frozenset({HeldStageStatus.LISTENING, HeldStageStatus.FAILED}),
    HeldStageStatus.LISTENING: frozenset({HeldStageStatus.READY, HeldStageStatus.FAILED}),
    HeldStageStatus.READY: frozenset(),
    HeldStageStatus.FAILED: frozenset(),
}


class HeldStage(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    job_id: str
    """The load job of the whole model, which is its engine's."""
    order: str
    """The order in its load spec: the control ordered this model here."""
    engine_neuron: str
    index: int
    """The stage's, among all of the model's; 0 is the engine's own."""
    num_stages: int
    layers: tuple[int, int]
    """``[first, last)``"""
    device: str
    status: HeldStageStatus
    since_unix_s: float
    spec_digest: str = ""
    memory_bytes: int | None = None
    """Most memory of the device that it may allocate; ``None``: unknown."""
    address: str = ""
    """The address at which it waits for its links; empty: not yet."""
    progress: LoadProgress | None = None
    failure: LoadFailure | None = None
