"""vLLM's ``prompt_logprobs``: of each prompt token its own log probability and rank, and those of
the most likely tokens in its place.

    [null, {"9707": {"logprob": -1.2, "rank": 3, "decoded_token": "Hello"}, …}, …]

Nothing precedes the first token, so it has none. Pure.
"""

from __future__ import annotations

import orjson

from inference.protocol.events import PromptScored, RankedToken
from inference.wire.openai.answers import LEAST_LOGPROB


class PromptLogprobs:
    """Put together as the events come, already as JSON: there are many of them."""

    def __init__(self, num_prompts: int) -> None:
        self._positions: list[list[bytes]] = [[b"null"] for _ in range(num_prompts)]

    def add(self, event: PromptScored) -> None:
        self._positions[event.prompt_index] += map(_position, event.tokens)

    def of_prompt(self, prompt_index: int) -> orjson.Fragment:
        return orjson.Fragment(b"[" + b",".join(self._positions[prompt_index]) + b"]")


def _position(tokens: list[RankedToken]) -> bytes:
    return orjson.dumps(
        {
            str(token.token_id): {
                "logprob": max(token.logprob, LEAST_LOGPROB),
                "rank": token.rank,
                "decoded_token": token.text,
            }
            for token in tokens
        }
    )
