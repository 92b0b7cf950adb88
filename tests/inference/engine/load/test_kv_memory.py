"""How many blocks a measured budget gives."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from inference.engine.errors import DoesNotFitError
from inference.engine.load import kv_budget
from inference.engine.load.kv_memory import (
    KVPlan,
    PrefillBound,
    cpu_kv_share,
    kept_host_bytes,
    plan_kv,
    plan_states,
    positions_that_fit,
    shared_budget,
    wanted_slots,
)
from inference.engine.load.trial import DeviceTrial
from inference.models.adapter import PLANNED_RANK, planned_adapter_bytes
from inference.models.cache.kv_format import CacheLayout, cache_layout, kv_bytes_per_token
from inference.models.config import ModelConfig
from inference.models.layer_configs import DeltaConfig
from inference.protocol.load import LoadSpec, PrefillSpeed
from tests.cases import each_case

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=1024,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
)
BLOCK_BYTES = 2 * 2 * 2 * 16 * 32 * 4


def plan(budget_bytes: int, **overrides: Any) -> KVPlan:
    arguments: dict[str, Any] = {"max_context_tokens": None, "max_sequences": 4}
    return plan_kv(
        CONFIG,
        budget_bytes=budget_bytes,
        block_tokens=32,
        kv_format="fp32",
        **(arguments | overrides),
    )


def test_whole_blocks_within_the_budget() -> None:
    found = plan(40 * BLOCK_BYTES + 100)
    assert (found.num_blocks, found.kv_bytes) == (40, 40 * BLOCK_BYTES)
    assert found.context_tokens == 1024
    assert found.context_reason == "1,024 tokens: the model's own; KV memory holds 1,280"


def test_no_more_than_all_sequences_can_use() -> None:
    assert plan(10**12).num_blocks == 4 * 32


def test_capacity_limits_the_context() -> None:
    found = plan(10 * BLOCK_BYTES)
    assert found.context_tokens == 320
    assert "bound by KV memory, the model's own are 1,024" in found.context_reason


def test_operator_limits_the_context() -> None:
    found = plan(10**12, max_context_tokens=100)
    assert (found.context_tokens, found.num_blocks) == (100, 16)
    assert "the operator's clamp on the model's 1,024" in found.context_reason


def prefill_bound(
    max_prefill_s: float | None, *, token_s: float = 0.1, is_average: bool = False
) -> PrefillBound:
    return PrefillBound(
        speed=PrefillSpeed(token_s=token_s), max_prefill_s=max_prefill_s, is_average=is_average
    )


def test_prompt_speed_limits_the_context_and_the_blocks() -> None:
    found = plan(10**12, prefill=prefill_bound(60))
    assert (found.context_tokens, found.num_blocks) == (600, 4 * 19)
    assert found.context_reason.startswith("600 tokens: bound by prompt speed")
    assert "takes 60 s of the 60 s allowed (10 tokens/s, measured" in found.context_reason


def test_speed_without_a_bound_is_only_reported() -> None:
    found = plan(10**12, prefill=prefill_bound(None, is_average=True))
    assert found.context_tokens == 1024
    assert found.context_reason.endswith(
        "a prompt that long takes 102 s (10 tokens/s, average of earlier requests)"
    )


def test_too_slow_for_any_use_is_refused_with_both_numbers() -> None:
    with pytest.raises(DoesNotFitError, match=r"256 tokens takes 26 s here and 20 s are allowed"):
        plan(10**12, prefill=prefill_bound(20))


def test_an_operators_short_context_may_be_slower_than_a_useful_one() -> None:
    found = plan(10**12, prefill=prefill_bound(20), max_context_tokens=100)
    assert found.context_tokens == 100


def test_too_little_is_refused_with_both_numbers() -> None:
    with pytest.raises(DoesNotFitError, match=r"0\.1 MB are free .* 256 tokens needs 0\.1 MB"):
        plan(7 * BLOCK_BYTES)


def test_past_prompts_take_twice_the_weights_unless_the_operator_set_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HELEXA_CPU_KV_SHARE", raising=False)
    assert kept_host_bytes(10**6) == 2 * 10**6
    monkeypatch.setenv("HELEXA_CPU_KV_SHARE", "0.2")
    assert kept_host_bytes(10**6) is None


def test_whole_blocks_are_kept_and_never_more_than_there_are() -> None:
    assert plan(40 * BLOCK_BYTES).kept_blocks == 40
    assert plan(40 * BLOCK_BYTES, kept_bytes=7 * BLOCK_BYTES + 100).kept_blocks == 7
    assert plan(40 * BLOCK_BYTES, kept_bytes=70 * BLOCK_BYTES).kept_blocks == 40


@each_case("word", ["0", "1.5", "-1", "much"])
def test_share_that_cannot_be(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELEXA_CPU_KV_SHARE", word)
    with pytest.raises(ValueError, match=word):
        cpu_kv_share()


def model_on(device: str, dtype: torch.dtype, kv_format: str) -> Any:
    return SimpleNamespace(
        config=CONFIG,
        device=torch.device(device),
        dtype=dtype,
        kv_format=kv_format,
        captured_bytes=lambda max_rows: 0,
    )


def built_of(model: Any, load_bytes: int = 0, process_bytes: int = 0) -> Any:
    return SimpleNamespace(
        model=model,
        ranked=None,
        staged=None,
        trial=SimpleNamespace(
            bound=None, devices=[DeviceTrial(model.device, load_bytes, process_bytes)]
        ),
        draft=None,
        draft_block_bytes=0,
        num_positions=None,
    )


def test_the_share_is_of_what_no_other_model_was_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELEXA_CPU_KV_SHARE", "0.5")
    monkeypatch.setattr(kv_budget, "free_memory_bytes", lambda device: 100 * BLOCK_BYTES)
    model: Any = model_on("cpu", torch.float32, "fp32")
    built = built_of(model)
    opened: Any = SimpleNamespace(weight_bytes=10**9)
    spec = LoadSpec(job_id="1", model="m", source="path:x", promised_bytes=20 * BLOCK_BYTES)
    assert kv_budget.kv_plan(spec, opened, built).num_blocks == 40


def test_no_more_than_the_neuron_promised_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELEXA_CPU_KV_SHARE", "0.5")
    monkeypatch.setattr(kv_budget, "free_memory_bytes", lambda device: 100 * BLOCK_BYTES)
    model: Any = model_on("cpu", torch.float32, "fp32")
    built = built_of(model, load_bytes=7 * BLOCK_BYTES, process_bytes=3 * BLOCK_BYTES)
    opened: Any = SimpleNamespace(weight_bytes=10**9)
    spec = LoadSpec(job_id="1", model="m", source="path:x", memory_limit_bytes=30 * BLOCK_BYTES)
    assert kv_budget.kv_plan(spec, opened, built).num_blocks == 20
    asked = msgspec.structs.replace(spec, kv_memory_bytes=25 * BLOCK_BYTES)
    assert kv_budget.kv_plan(asked, opened, built).num_blocks == 25


def test_adapters_get_room_before_keys_and_values_but_no_more_than_an_eighth() -> None:
    found = plan(40 * BLOCK_BYTES, adapter_bytes=3 * BLOCK_BYTES)
    assert (found.num_blocks, found.adapter_bytes) == (37, 3 * BLOCK_BYTES)
    found = plan(40 * BLOCK_BYTES, adapter_bytes=30 * BLOCK_BYTES)
    assert (found.num_blocks, found.adapter_bytes) == (35, 5 * BLOCK_BYTES)


def test_a_planned_adapter_changes_every_projection() -> None:
    hidden, inner, kv = CONFIG.hidden_size, CONFIG.intermediate_size, 2 * 16
    of_layer = 2 * (hidden + hidden) + 2 * (hidden + kv) + 3 * (hidden + inner)
    assert planned_adapter_bytes(CONFIG, 2) == 2 * CONFIG.num_layers * PLANNED_RANK * of_layer


@each_case(
    ("device", "changes", "is_planned"),
    [
        ("cuda", {}, True),
        ("cuda", {"adapter_slots": 0}, False),
        ("cuda", {"kv_memory_bytes": 40 * BLOCK_BYTES}, False),  # all of that is for KV
        ("cpu", {}, False),  # where KV leaves most of the memory
    ],
)
def test_a_card_keeps_room_for_the_adapters_of_all_slots(
    monkeypatch: pytest.MonkeyPatch, device: str, changes: dict[str, Any], is_planned: bool
) -> None:
    monkeypatch.setattr(kv_budget, "free_memory_bytes", lambda device: 10**9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    model: Any = model_on(device, torch.bfloat16, "bf16")
    built = built_of(model)
    opened: Any = SimpleNamespace(weight_bytes=10**9)
    spec = LoadSpec(job_id="1", model="m", source="path:x", adapter_slots=3)
    found = kv_budget.kv_plan(msgspec.structs.replace(spec, **changes), opened, built)
    assert found.adapter_bytes == (3 * planned_adapter_bytes(CONFIG, 2) if is_planned else 0)


@each_case(
    ("free", "taken"),
    [
        (10_000, 400),  # a few contexts
        (500, 250),  # half, beyond one context
        (150, 100),  # one context whole
        (80, 80),  # all there is, for less than one
    ],
)
def test_by_default_another_model_finds_room_beside(free: int, taken: int) -> None:
    assert shared_budget(free, context_bytes=100, sequences_bytes=0) == taken


def test_many_short_sequences_need_more_than_a_few_contexts() -> None:
    assert shared_budget(10_000, context_bytes=100, sequences_bytes=900) == 900
    assert shared_budget(1_000, context_bytes=100, sequences_bytes=900) == 500


def test_the_plan_of_a_card_leaves_room_and_reports_its_kv() -> None:
    alone = plan(10_000 * BLOCK_BYTES, max_sequences=1000)
    shared = plan(10_000 * BLOCK_BYTES, leaves_room=True, max_sequences=1000)
    assert shared.context_tokens == alone.context_tokens
    assert shared.kv_bytes < alone.kv_bytes
    assert f"{shared.num_blocks * 32:,}" in shared.context_reason


def test_a_declared_context_is_a_claim_that_memory_bounds() -> None:
    """Keys and values of a token take 512 bytes in float32, its angles 192 and 4 for growth."""
    assert positions_that_fit(CONFIG, 708 * 1000, "fp32") == 1250
    unrotated = replace(CONFIG, mixers=("unrotated",) * 2)
    assert positions_that_fit(unrotated, 516 * 1000, "fp32") == 1250


def test_a_context_never_passes_the_positions_that_the_model_was_built_for() -> None:
    found = plan(40 * BLOCK_BYTES, num_positions=500)
    assert found.context_tokens == 500
    assert "bound by KV memory, the model's own are 1,024" in found.context_reason
    assert plan(40 * BLOCK_BYTES, num_positions=500, leaves_room=True).context_tokens == 500


DELTA = DeltaConfig(
    num_key_heads=2, num_value_heads=4, key_head_dim=8, value_head_dim=6, conv_kernel=4
)
HYBRID = ModelConfig(
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
LAYOUT = cache_layout(HYBRID)
SLOT_BYTES = 3 * 4 * (3 * (2 * 16 + 24) + 4 * 8 * 6)


def test_a_layout_names_who_keeps_what() -> None:
    assert LAYOUT.attention_layers == (3,)
    assert LAYOUT.state_layers == (0, 1, 2)
    assert LAYOUT.state_bytes_per_slot == SLOT_BYTES
    assert kv_bytes_per_token(HYBRID, "fp32") == 2 * 2 * 16 * 4, "of one layer"


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
    block_bytes = 32 * kv_bytes_per_token(HYBRID, "fp32")
    budget_bytes = wanted_slots(2) * SLOT_BYTES + 100 * block_bytes
    plan = plan_kv(
        HYBRID,
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
