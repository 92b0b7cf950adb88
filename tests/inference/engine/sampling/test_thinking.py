"""The thinking budget, token by token."""

from __future__ import annotations

from inference.engine.sampling.logits_processors import ThinkingBudget
from inference.protocol.sampling import ThinkingLimit

OPEN, CLOSE, WORD = 1, 2, 3


def forced_after(limit: ThinkingLimit, token_ids: list[int]) -> list[int | None]:
    """The forced token before each token, and after the last."""
    budget = ThinkingBudget(limit)
    forced = [budget.forced_token]
    for token_id in token_ids:
        budget.advance(token_id)
        forced.append(budget.forced_token)
    return forced


def test_block_that_the_prompt_has_opened() -> None:
    limit = ThinkingLimit(max_tokens=2, end_token_id=CLOSE)
    assert forced_after(limit, [WORD, WORD, CLOSE, WORD]) == [None, None, CLOSE, None, None]


def test_block_that_the_output_opens() -> None:
    limit = ThinkingLimit(max_tokens=1, end_token_id=CLOSE, start_token_id=OPEN)
    assert forced_after(limit, [WORD, OPEN, WORD]) == [None, None, None, CLOSE]


def test_no_thinking_at_all() -> None:
    assert forced_after(ThinkingLimit(max_tokens=0, end_token_id=CLOSE), [CLOSE]) == [CLOSE, None]


def test_block_that_closes_in_time_is_left_alone() -> None:
    limit = ThinkingLimit(max_tokens=3, end_token_id=CLOSE)
    assert forced_after(limit, [WORD, WORD, CLOSE, WORD, WORD, WORD]) == [None] * 7


def test_block_opened_again_continues_counting() -> None:
    limit = ThinkingLimit(max_tokens=2, end_token_id=CLOSE, start_token_id=OPEN)
    forced = forced_after(limit, [OPEN, WORD, CLOSE, OPEN, WORD])
    assert forced == [None, None, None, None, None, CLOSE]
