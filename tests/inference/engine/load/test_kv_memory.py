"""How many blocks a measured budget gives."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inference.engine.errors import DoesNotFitError
from inference.engine.load import kv_budget, kv_memory
from inference.engine.load.kv_budget import smallest_plan
from inference.engine.load.trial import DeviceTrial
from inference.models.adapter import planned_adapter_bytes
from inference.models.config import ModelConfig
from inference.models.kv_format import CacheLayout, cache_layout, kv_bytes_per_token
from inference.protocol.load import PrefillSpeed
from tests.cases import each_case
from tests.inference.engine.conftest import cpu_spec
from tests.inference.models.tiny_configs import config_of

CONFIG = replace(config_of("llama"), vocab_size=100, max_positions=1024)
BLOCK_BYTES = 2 * 2 * 2 * 16 * 32 * 4


def plan(budget_bytes: int, *, config: ModelConfig = CONFIG, **overrides: Any) -> kv_memory.KVPlan:
    arguments: dict[str, Any] = {"max_context_tokens": None, "max_sequences": 4} | overrides
    return kv_memory.plan_kv(
        config, budget_bytes=budget_bytes, block_tokens=32, kv_format="fp32", **arguments
    )


def prefill_bound(
    max_prefill_s: float | None, *, token_s: float = 0.1, is_average: bool = False
) -> kv_memory.PrefillBound:
    return kv_memory.PrefillBound(
        speed=PrefillSpeed(token_s=token_s), max_prefill_s=max_prefill_s, is_average=is_average
    )


ALL = 10**12


@each_case(
    ("budget_bytes", "overrides", "context_tokens", "num_blocks", "reasons"),
    [
        (40 * BLOCK_BYTES + 100, {}, 1024, 40, ["1,024 tokens: the model's own", "holds 1,280"]),
        (ALL, {}, 1024, 4 * 32, []),  # no more than all sequences can use
        (10 * BLOCK_BYTES, {}, 320, 10, ["bound by KV memory, the model's own are 1,024"]),
        (ALL, {"max_context_tokens": 100}, 100, 16, ["operator's clamp on the model's 1,024"]),
        (
            *(ALL, {"prefill": prefill_bound(60)}, 600, 4 * 19),
            ["bound by prompt speed", "takes 60 s of the 60 s allowed (10 tokens/s, measured"],
        ),
        (
            *(ALL, {"prefill": prefill_bound(None, is_average=True)}, 1024, 4 * 32),
            ["a prompt that long takes 102 s (10 tokens/s, average of earlier requests)"],
        ),
        # An operator's short context may be slower than a useful one.
        (ALL, {"prefill": prefill_bound(20), "max_context_tokens": 100}, 100, 16, []),
        (40 * BLOCK_BYTES, {"num_positions": 500}, 500, 40, ["bound by KV memory"]),
        (40 * BLOCK_BYTES, {"num_positions": 500, "leaves_room": True}, 500, 32, []),
        # Adapters have room before keys and values, but no more than an eighth.
        (40 * BLOCK_BYTES, {"adapter_bytes": 3 * BLOCK_BYTES}, 1024, 37, []),
        (40 * BLOCK_BYTES, {"adapter_bytes": 30 * BLOCK_BYTES}, 1024, 35, []),
        (40 * BLOCK_BYTES, {"draft_block_bytes": BLOCK_BYTES}, 640, 20, []),
    ],
)
def test_plans(
    budget_bytes: int, overrides: Any, context_tokens: int, num_blocks: int, reasons: list[str]
) -> None:
    found = plan(budget_bytes, **overrides)
    assert (found.context_tokens, found.num_blocks) == (context_tokens, num_blocks)
    assert found.kv_bytes == num_blocks * (BLOCK_BYTES + overrides.get("draft_block_bytes", 0))
    asked_bytes = overrides.get("adapter_bytes", 0)
    assert found.adapter_bytes == min(asked_bytes, budget_bytes // 8)
    assert all(reason in found.context_reason for reason in reasons), found.context_reason


def test_kept_blocks_and_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    for kept_bytes, expected in ((None, 40), (7 * BLOCK_BYTES + 100, 7), (70 * BLOCK_BYTES, 40)):
        assert plan(40 * BLOCK_BYTES, kept_bytes=kept_bytes).kept_blocks == expected
    # Past prompts take twice the weights unless the operator set more.
    monkeypatch.delenv("HELEXA_CPU_KV_SHARE", raising=False)
    assert kv_memory.kept_host_bytes(10**6) == 2 * 10**6
    monkeypatch.setenv("HELEXA_CPU_KV_SHARE", "0.2")
    assert kv_memory.kept_host_bytes(10**6) is None
    monkeypatch.setenv("HELEXA_CPU_KV_SHARE", "1.5")
    with pytest.raises(ValueError, match=r"1\.5"):
        kv_memory.cpu_kv_share()
    # What does not fit is refused with both numbers.
    with pytest.raises(DoesNotFitError, match="256 tokens takes 26 s here and 20 s are allowed"):
        plan(ALL, prefill=prefill_bound(20))
    with pytest.raises(DoesNotFitError, match=r"0\.1 MB are free .* 256 tokens needs 0\.1 MB"):
        plan(7 * BLOCK_BYTES)


ADAPTERS_BYTES = 3 * planned_adapter_bytes(CONFIG, 2)


@each_case(
    ("device", "changes", "num_blocks", "adapter_bytes"),
    [
        ("cpu", {}, 50, 0),  # where KV leaves most of the memory
        ("cpu", {"promised_bytes": 20 * BLOCK_BYTES}, 40, 0),
        ("cpu", {"memory_limit_bytes": 30 * BLOCK_BYTES}, 20, 0),
        ("cpu", {"memory_limit_bytes": 1, "kv_memory_bytes": 25 * BLOCK_BYTES}, 25, 0),
        ("cuda", {}, None, ADAPTERS_BYTES),
        ("cuda", {"adapter_slots": 0}, None, 0),
        ("cuda", {"kv_memory_bytes": 40 * BLOCK_BYTES}, 40, 0),  # all of that is for KV
    ],
)
def test_what_a_device_has_left(
    monkeypatch: pytest.MonkeyPatch, device: str, changes: Any, num_blocks: Any, adapter_bytes: int
) -> None:
    monkeypatch.setenv("HELEXA_CPU_KV_SHARE", "0.5")
    free_bytes = 100 * BLOCK_BYTES if device == "cpu" else 10**9
    monkeypatch.setattr(kv_budget, "free_memory_bytes", lambda device: free_bytes)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    place = torch.device(device)
    model = SimpleNamespace(config=CONFIG, device=place, kv_format="fp32")
    model.dtype = torch.float32 if device == "cpu" else torch.bfloat16
    model.captured_bytes = lambda max_rows: 0
    trial = SimpleNamespace(
        bound=None, devices=[DeviceTrial(place, 7 * BLOCK_BYTES, 3 * BLOCK_BYTES)]
    )
    nothing = dict.fromkeys(("ranked", "staged", "draft", "num_positions"))
    built: Any = SimpleNamespace(model=model, trial=trial, draft_block_bytes=0, **nothing)
    built.spec, built.weight_bytes = cpu_spec("x", **{"adapter_slots": 3} | changes), 10**9
    found = kv_budget.kv_plan(built)
    assert found.adapter_bytes == adapter_bytes
    assert num_blocks is None or found.num_blocks == num_blocks


def test_shares_and_claims() -> None:
    """By default another model finds room beside. A declared context is a claim that memory bounds:
    keys and values of a token take 512 bytes in float32, its angles 192 and 4 for growth."""
    for free, sequences, taken in (
        (10_000, 0, 400),  # a few contexts
        (500, 0, 250),  # half, beyond one context
        (150, 0, 100),  # one context whole
        (80, 0, 80),  # all there is, for less than one
        (10_000, 900, 900),  # many short sequences
        (1_000, 900, 500),
    ):
        assert kv_memory.shared_budget(free, context_bytes=100, sequences_bytes=sequences) == taken
    assert kv_memory.positions_that_fit(CONFIG, 708 * 1000, "fp32") == 1250
    unrotated = replace(CONFIG, mixers=("unrotated",) * 2)
    assert kv_memory.positions_that_fit(unrotated, 516 * 1000, "fp32") == 1250


HYBRID = config_of("qwen3_5")
LAYOUT = cache_layout(HYBRID)
SLOT_BYTES = 3 * 4 * (3 * (2 * 2 * 16 + 4 * 32) + 4 * 16 * 32)


def test_states_and_the_blocks_that_they_leave() -> None:
    """Half of a budget is for them; fewer run where memory is short."""
    assert (LAYOUT.attention_layers, LAYOUT.state_layers) == ((3,), (0, 1, 2))
    assert kv_bytes_per_token(HYBRID, "fp32") == 2 * 2 * 16 * 4, "of one layer"
    for num_slots, *expected in ((33, 8, 16), (3, 1, 0), (4, 1, 1), (7, 2, 2), (31, 8, 14)):
        budget_bytes = (
            10**9 if num_slots == kv_memory.wanted_slots(8) else 2 * num_slots * SLOT_BYTES
        )
        found = kv_memory.plan_states(LAYOUT, budget_bytes=budget_bytes, max_sequences=8)
        assert (found.num_slots, found.max_sequences, found.num_snapshots) == (num_slots, *expected)
        assert found.state_bytes == num_slots * SLOT_BYTES
        assert num_slots < 33 or found.in_words() == (
            "states of 8 sequences and 16 snapshots take 1.0 MB"
        )
    assert LAYOUT.state_bytes_per_slot == SLOT_BYTES
    found = kv_memory.plan_states(
        LAYOUT, budget_bytes=80 * SLOT_BYTES, max_sequences=50, leaves_room=True
    )
    assert found.num_slots == 20
    found = kv_memory.plan_states(
        CacheLayout(attention_layers=(0,)), budget_bytes=0, max_sequences=8
    )
    assert found == kv_memory.StatePlan(num_slots=0, slot_bytes=0, max_sequences=8)
    assert found.in_words() == ""
    with pytest.raises(DoesNotFitError, match="one sequence needs"):
        kv_memory.plan_states(LAYOUT, budget_bytes=6 * SLOT_BYTES - 1, max_sequences=8)
    block_bytes = 32 * kv_bytes_per_token(HYBRID, "fp32")
    budget_bytes = kv_memory.wanted_slots(2) * SLOT_BYTES + 100 * block_bytes
    whole = plan(budget_bytes, config=HYBRID, max_sequences=2)
    assert whole.states.num_slots == kv_memory.wanted_slots(2)
    assert whole.num_blocks == 16, "two contexts of 256 tokens"
    assert whole.cache_bytes == kv_memory.wanted_slots(2) * SLOT_BYTES + 16 * block_bytes
    assert "states of 2 sequences and 4 snapshots" in whole.context_reason


def part(
    num_blocks: int, context_tokens: int, num_slots: int = 0, slot_bytes: int = 0
) -> kv_memory.KVPlan:
    own = {"num_slots": num_slots, "slot_bytes": slot_bytes, "max_sequences": num_slots or 8}
    return kv_memory.KVPlan(
        num_blocks=num_blocks,
        block_bytes=100,
        kept_blocks=num_blocks // 2,
        context_tokens=context_tokens,
        context_reason=f"{context_tokens} tokens",
        states=kv_memory.StatePlan(**own),
        adapter_bytes=3,
    )


def test_the_smallest_part_decides() -> None:
    found = smallest_plan([part(40, 1280), part(25, 640), part(90, 1280)])
    assert (found.num_blocks, found.kept_blocks, found.context_tokens) == (25, 12, 640)
    assert (found.kv_bytes, found.adapter_bytes) == (25 * 300, 9)
    assert found.context_reason == "640 tokens"
    assert found.states.num_slots == 0 and found.states.max_sequences == 8
    # Parts without states bound no slots, and those without keys no blocks.
    found = smallest_plan([part(40, 1280, num_slots=9, slot_bytes=5), part(25, 640)])
    assert found.states == kv_memory.StatePlan(num_slots=9, slot_bytes=5, max_sequences=8)
    stateful = replace(HYBRID, mixers=HYBRID.mixers and HYBRID.mixers[:1], num_layers=1)
    asked = {"max_sequences": 2, "adapter_bytes": SLOT_BYTES}
    only_states = plan(9 * SLOT_BYTES, config=stateful, **asked)
    assert (only_states.block_bytes, only_states.cache_bytes) == (0, only_states.states.state_bytes)
    found = smallest_plan([only_states, part(25, 640, num_slots=9, slot_bytes=5)])
    assert (found.num_blocks, found.kv_bytes) == (25, 2500)
    assert found.states.num_slots == only_states.states.num_slots <= 9
    assert found.states.slot_bytes == only_states.states.slot_bytes + 5
    assert found.states.max_sequences == 2
    assert found.adapter_bytes == SLOT_BYTES + 3, "adapters change layers without keys, too"
