"""Which parts of a conversation are left out so that it fits into the context. Pure.

A projection only: the history keeps everything, and a mark replaces each part left out. The first
turn, the user's texts and the last four turns stay. Tool results of 256 characters or more go
first, the oldest of them first; then what the assistant wrote. Calls stay, so that results keep
their place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from helexa_acp.conversation.history import (
    AssistantTurn,
    Image,
    Part,
    Text,
    ToolResult,
    Turn,
    UserTurn,
    text_of,
)

CHARACTERS_PER_TOKEN = 3.5
TURN_TOKENS = 8
IMAGE_TOKENS = 512
UNBOUNDED_ANSWER_TOKENS = 2048
RESERVE_TOKENS = 512
NUM_PROTECTED_LAST = 4
SHORTEST_ELIDED = 256
UNBOUNDED = 10**12
"""A budget that no conversation reaches."""


@dataclass(frozen=True, slots=True)
class Projection:
    turns: tuple[Turn, ...]
    num_elided: int
    estimated_tokens: int
    can_shrink: bool
    """Whether there is more that could be left out."""


def budget_tokens(context_window: int | None, max_tokens: int | None) -> int:
    """How much of the context a prompt may take. ``None``: its length is unknown."""
    if context_window is None:
        return UNBOUNDED
    return max(context_window - (max_tokens or UNBOUNDED_ANSWER_TOKENS) - RESERVE_TOKENS, 0)


def window_for(budget: int, max_tokens: int | None) -> int:
    """The context window of which a prompt may take ``budget``."""
    return budget + (max_tokens or UNBOUNDED_ANSWER_TOKENS) + RESERVE_TOKENS


def text_tokens(text: str) -> int:
    return int(len(text) / CHARACTERS_PER_TOKEN) + TURN_TOKENS


def turn_tokens(turn: Turn) -> int:
    match turn:
        case UserTurn(parts):
            return _parts_tokens(parts)
        case ToolResult():
            return _parts_tokens(turn.parts)
        case AssistantTurn():
            calls = "".join(call.name + json.dumps(call.arguments) for call in turn.calls)
            return text_tokens(turn.text + calls) + IMAGE_TOKENS * len(turn.images)


def _parts_tokens(parts: Sequence[Part]) -> int:
    num_images = sum(isinstance(part, Image) for part in parts)
    return text_tokens(text_of(tuple(parts))) + IMAGE_TOKENS * num_images


def project(
    turns: Sequence[Turn],
    *,
    budget: int,
    fixed_tokens: int,
    scale: float = 1.0,
    elided_before: int = 0,
) -> Projection:
    """The conversation in ``budget`` tokens, or as near to it as eliding comes.

    ``fixed_tokens`` is the estimate of what surrounds it (system prompt, tools); ``scale`` is how
    many tokens the endpoint counts for one that is estimated. What can be elided of the turns
    before ``elided_before`` is left out whatever the budget."""
    projected = list(turns)
    num_elided, can_shrink = 0, False
    estimate = fixed_tokens + sum(map(turn_tokens, turns))
    for elide in (_without_result, _without_prose):
        for index, turn in enumerate(turns):
            if _is_protected(index, turn, len(turns)):
                continue
            shorter = elide(projected[index])
            if shorter is None:
                continue
            if index >= elided_before and estimate * scale <= budget:
                can_shrink = True
                continue
            estimate += turn_tokens(shorter) - turn_tokens(projected[index])
            projected[index] = shorter
            num_elided += 1
    return Projection(tuple(projected), num_elided, estimate, can_shrink)


def _is_protected(index: int, turn: Turn, num_turns: int) -> bool:
    return index == 0 or index >= num_turns - NUM_PROTECTED_LAST or isinstance(turn, UserTurn)


def _without_result(turn: Turn) -> Turn | None:
    if not isinstance(turn, ToolResult):
        return None
    text = text_of(turn.parts)
    if len(text) < SHORTEST_ELIDED and not any(isinstance(part, Image) for part in turn.parts):
        return None
    return replace(turn, parts=(Text(f"[{len(text)} characters of this result were left out]"),))


def _without_prose(turn: Turn) -> Turn | None:
    if not isinstance(turn, AssistantTurn) or len(turn.text) < SHORTEST_ELIDED:
        return None
    return replace(turn, text=f"[{len(turn.text)} characters were left out]", thoughts=())
