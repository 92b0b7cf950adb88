"""How many blocks a measured budget gives."""

from __future__ import annotations

import pytest
import torch

from inference.engine.errors import DoesNotFitError
from inference.engine.memory import KVPlan, cpu_kv_share, plan_kv
from inference.models.config import ModelConfig

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


def plan(budget_bytes: int, **overrides: int | None) -> KVPlan:
    arguments: dict[str, int | None] = {"max_context_tokens": None, "max_sequences": 4}
    return plan_kv(
        CONFIG,
        budget_bytes=budget_bytes,
        block_tokens=32,
        dtype=torch.float32,
        **(arguments | overrides),  # type: ignore[arg-type]
    )


def test_whole_blocks_within_the_budget() -> None:
    found = plan(40 * BLOCK_BYTES + 100)
    assert found == KVPlan(num_blocks=40, kv_bytes=40 * BLOCK_BYTES, context_tokens=1024)


def test_no_more_than_all_sequences_can_use() -> None:
    assert plan(10**12).num_blocks == 4 * 32


def test_capacity_limits_the_context() -> None:
    assert plan(10 * BLOCK_BYTES).context_tokens == 320


def test_operator_limits_the_context() -> None:
    found = plan(10**12, max_context_tokens=100)
    assert (found.context_tokens, found.num_blocks) == (100, 16)


def test_too_little_is_refused_with_both_numbers() -> None:
    with pytest.raises(DoesNotFitError, match=r"0\.1 MB are free .* 256 tokens needs 0\.1 MB"):
        plan(7 * BLOCK_BYTES)


@pytest.mark.parametrize("word", ["0", "1.5", "-1", "much"])
def test_share_that_cannot_be(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELEXA_CPU_KV_SHARE", word)
    with pytest.raises(ValueError, match=word):
        cpu_kv_share()
