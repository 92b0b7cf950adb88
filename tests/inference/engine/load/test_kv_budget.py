"""The smallest stage decides how many blocks and states there are. Pure."""

from __future__ import annotations

from inference.engine.load.kv_budget import PartPlan, smallest_plan
from inference.engine.load.kv_memory import KVPlan, StatePlan


def states(num_slots: int, max_sequences: int) -> StatePlan:
    return StatePlan(num_slots=num_slots, state_bytes=num_slots * 7, max_sequences=max_sequences)


def part(num_blocks: int, context_tokens: int, num_slots: int = 0, slot_bytes: int = 0) -> PartPlan:
    own = states(num_slots, max_sequences=num_slots or 8)
    plan = KVPlan(
        num_blocks=num_blocks,
        kv_bytes=num_blocks * 100,
        kept_blocks=num_blocks // 2,
        context_tokens=context_tokens,
        context_reason=f"{context_tokens} tokens",
        states=own,
        adapter_bytes=3,
    )
    return PartPlan(plan, own, block_bytes=100, slot_bytes=slot_bytes)


def test_the_smallest_part_decides() -> None:
    found = smallest_plan([part(40, 1280), part(25, 640), part(90, 1280)])
    assert (found.num_blocks, found.kept_blocks, found.context_tokens) == (25, 12, 640)
    assert found.kv_bytes == 25 * 300
    assert found.context_reason == "640 tokens"
    assert found.adapter_bytes == 9
    assert found.states.num_slots == 0 and found.states.max_sequences == 8


def test_parts_without_states_bound_no_slots() -> None:
    found = smallest_plan([part(40, 1280, num_slots=9, slot_bytes=5), part(25, 640)])
    assert found.states.num_slots == 9
    assert found.states.state_bytes == 45
    assert found.states.max_sequences == 8


def test_parts_without_keys_bound_no_blocks() -> None:
    only_states = PartPlan(None, states(4, max_sequences=2), block_bytes=0, slot_bytes=11)
    found = smallest_plan([only_states, part(25, 640, num_slots=9, slot_bytes=5)])
    assert (found.num_blocks, found.kv_bytes) == (25, 2500)
    assert found.states.num_slots == 4
    assert found.states.state_bytes == 4 * 16
    assert found.states.max_sequences == 2
