"""How many state slots a model with recurrent layers gets of the memory that is there for keys,
values and states. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from inference.engine.cache.state_slots import SLOTS_PER_SEQUENCE
from inference.engine.errors import DoesNotFitError
from inference.models.cache.kv_format import CacheLayout

SNAPSHOTS_PER_SEQUENCE = 2
"""Kept for later prompts, where there is room: the end of a prompt and that of an answer."""
LARGEST_SHARE = 0.5
"""The share of the memory that states may take: without blocks they are of no use."""
SHARE_THAT_LEAVES_ROOM = 0.25
"""The same where no setting claims all of the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePlan:
    num_slots: int
    state_bytes: int
    max_sequences: int
    """How many can run at once."""

    @property
    def num_snapshots(self) -> int:
        """The number of snapshots there is room for while all sequences run."""
        return max(0, self.num_slots - 1 - SLOTS_PER_SEQUENCE * self.max_sequences)

    def in_words(self) -> str:
        """Describes the states for the load report; empty without states."""
        if not self.num_slots:
            return ""
        return (
            f"states of {self.max_sequences} sequences and {self.num_snapshots} snapshots take "
            f"{self.state_bytes / 1e6:,.1f} MB"
        )


def wanted_slots(max_sequences: int) -> int:
    """The empty state's, and those of all sequences and their snapshots."""
    return 1 + (SLOTS_PER_SEQUENCE + SNAPSHOTS_PER_SEQUENCE) * max_sequences


def plan_states(
    layout: CacheLayout, *, budget_bytes: int, max_sequences: int, leaves_room: bool = False
) -> StatePlan:
    """Slots for ``max_sequences`` and their snapshots, or for fewer where the share of the budget
    is too small for that. Raises ``DoesNotFitError``."""
    if not layout.has_states:
        return StatePlan(num_slots=0, state_bytes=0, max_sequences=max_sequences)
    slot_bytes = layout.state_bytes_per_slot
    share_bytes = int(budget_bytes * (SHARE_THAT_LEAVES_ROOM if leaves_room else LARGEST_SHARE))
    num_slots = min(wanted_slots(max_sequences), share_bytes // slot_bytes)
    if num_slots < 1 + SLOTS_PER_SEQUENCE:
        needed_bytes = (1 + SLOTS_PER_SEQUENCE) * slot_bytes
        raise DoesNotFitError(
            f"{share_bytes / 1e6:.1f} MB are free for the states of recurrent layers, but one "
            f"sequence needs {needed_bytes / 1e6:.1f} MB"
        )
    return StatePlan(
        num_slots=num_slots,
        state_bytes=num_slots * slot_bytes,
        max_sequences=min(max_sequences, max(1, (num_slots - 1) // (SLOTS_PER_SEQUENCE + 1))),
    )
