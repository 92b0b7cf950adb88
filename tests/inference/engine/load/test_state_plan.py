"""How many state slots there are for a budget."""

from __future__ import annotations

import pytest

from inference.engine.errors import DoesNotFitError
from inference.engine.load.kv_memory import plan_kv, plan_states, wanted_slots
from inference.models.cache.kv_format import CacheLayout, cache_layout, kv_bytes_per_token
from inference.models.config import ModelConfig
from inference.models.layers.configs import DeltaConfig
from tests.cases import each_case

DELTA = DeltaConfig(
    num_key_heads=2, num_value_heads=4, key_head_dim=8, value_head_dim=6, conv_kernel=4
)
CONFIG = ModelConfig(
    architecture="qwen3_5",
    vocab_size=128,
    hidden_size=64,
    intermediate_size=96,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=256,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    mixers=("delta", "delta", "delta", "attention"),
    delta=DELTA,
)
LAYOUT = cache_layout(CONFIG)
SLOT_BYTES = 3 * 4 * (3 * (2 * 16 + 24) + 4 * 8 * 6)


def test_a_layout_names_who_keeps_what() -> None:
    assert LAYOUT.attention_layers == (3,)
    assert LAYOUT.state_layers == (0, 1, 2)
    assert LAYOUT.state_bytes_per_slot == SLOT_BYTES
    assert kv_bytes_per_token(CONFIG, "fp32") == 2 * 2 * 16 * 4, "of one layer"


def test_all_sequences_get_slots_and_snapshots_where_there_is_room() -> None:
    plan = plan_states(LAYOUT, budget_bytes=10**9, max_sequences=8)
    assert plan.num_slots == wanted_slots(8) == 33
    assert plan.max_sequences == 8 and plan.num_snapshots == 16
    assert plan.state_bytes == 33 * SLOT_BYTES
    assert plan.in_words() == "states of 8 sequences and 16 snapshots take 0.1 MB"


@each_case(
    ("num_slots", "num_sequences", "num_snapshots"), [(3, 1, 0), (4, 1, 1), (7, 2, 2), (31, 8, 14)]
)
def test_fewer_run_where_memory_is_short(
    num_slots: int, num_sequences: int, num_snapshots: int
) -> None:
    plan = plan_states(LAYOUT, budget_bytes=2 * num_slots * SLOT_BYTES, max_sequences=8)
    assert plan.num_slots == num_slots
    assert plan.max_sequences == num_sequences
    assert plan.num_snapshots == num_snapshots


def test_not_even_one_sequence() -> None:
    with pytest.raises(DoesNotFitError, match="one sequence needs"):
        plan_states(LAYOUT, budget_bytes=6 * SLOT_BYTES - 1, max_sequences=8)


def test_less_is_taken_where_room_is_left_for_others() -> None:
    budget_bytes = 80 * SLOT_BYTES
    plan = plan_states(LAYOUT, budget_bytes=budget_bytes, max_sequences=50, leaves_room=True)
    assert plan.num_slots == 20


def test_a_model_without_states_has_no_slots() -> None:
    plan = plan_states(CacheLayout(attention_layers=(0,)), budget_bytes=0, max_sequences=8)
    assert (plan.num_slots, plan.state_bytes, plan.max_sequences) == (0, 0, 8)
    assert plan.in_words() == ""


def test_blocks_get_what_states_leave() -> None:
    block_bytes = 32 * kv_bytes_per_token(CONFIG, "fp32")
    budget_bytes = wanted_slots(2) * SLOT_BYTES + 100 * block_bytes
    plan = plan_kv(
        CONFIG,
        budget_bytes=budget_bytes,
        block_tokens=32,
        kv_format="fp32",
        max_context_tokens=None,
        max_sequences=2,
    )
    assert plan.states.num_slots == wanted_slots(2)
    assert plan.num_blocks == 16, "two contexts of 256 tokens"
    assert plan.cache_bytes == wanted_slots(2) * SLOT_BYTES + 16 * block_bytes
    assert "states of 2 sequences and 4 snapshots" in plan.context_reason
