"""Limits a sequence's thinking: counts the tokens of its thinking block and forces its end. Knows
token ids only."""

from __future__ import annotations

from inference.protocol.sampling import ThinkingLimit


class ThinkingBudget:
    """Follows one sequence's sampled tokens. A block that is opened again continues the last one's
    count."""

    __slots__ = ("_is_open", "_last_token_id", "_limit", "_num_tokens")

    def __init__(self, limit: ThinkingLimit) -> None:
        self._limit = limit
        self._is_open = limit.start_token_id is None
        self._last_token_id: int | None = None
        self._num_tokens = 0

    @property
    def forced_token(self) -> int | None:
        """What the next token has to be; ``None``: whatever is sampled."""
        is_spent = self._is_open and self._num_tokens >= self._limit.max_tokens
        return self._limit.end_token_id if is_spent else None

    def advance(self, token_id: int) -> None:
        if self._is_open:
            self._is_open = token_id != self._limit.end_token_id
            self._num_tokens += self._is_open
        else:
            follows = self._limit.follows_token_id
            is_there = follows is None or follows == self._last_token_id
            self._is_open = is_there and token_id == self._limit.start_token_id
        self._last_token_id = token_id
