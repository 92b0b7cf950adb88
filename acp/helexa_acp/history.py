"""A conversation as values, as the JSON of a session's file, and cut to fit into a context. Pure.

UserTurn, AssistantTurn (text, thoughts, calls), ToolResult (one for each call), UserTurn, ...

``project`` is a projection only: the history keeps everything, and a mark replaces each omitted
part. The oldest are omitted first, of each of these in turn, until the rest fits:

1. tool results of 256 characters or more, but for those of the last four turns of this prompt
2. the assistant's texts, but for the same; calls stay, so that results keep their place
3. earlier prompts with all that followed them, so that every call keeps its results
4. the results of the last four turns

The user's latest prompt stays whatever its length.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

INVALID_CALL = "<invalid>"
INTERRUPTED = "interrupted before it was done."


class Text(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class Image(Struct, frozen=True, tag_field="type", tag="image"):
    mime_type: str
    data: str
    """Base64."""


Part = Text | Image


class Thought(Struct, frozen=True):
    """``sealed`` is sent back unchanged: a signature, or an item."""

    text: str
    sealed: Any = None


class ToolCall(Struct, frozen=True):
    call_id: str = field(name="id")
    name: str
    arguments: dict[str, Any]


class UserTurn(Struct, frozen=True, tag_field="role", tag="user"):
    parts: tuple[Part, ...]


class AssistantTurn(Struct, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    text: str = ""
    thoughts: tuple[Thought, ...] = ()
    calls: tuple[ToolCall, ...] = ()


class ToolResult(Struct, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    call_id: str
    name: str
    parts: tuple[Part, ...]
    is_error: bool = False


Turn = UserTurn | AssistantTurn | ToolResult


@dataclass(slots=True)
class Usage:
    """Tokens by the endpoint's count; requests add up."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    thought_tokens: int = 0
    last_total_tokens: int = dataclasses.field(default=0, compare=False)
    """Prompt and answer of the latest request."""

    def add(self, other: Usage) -> None:
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cached_tokens += other.cached_tokens
        self.thought_tokens += other.thought_tokens
        self.last_total_tokens = other.input_tokens + other.output_tokens or self.last_total_tokens


def text_of(parts: tuple[Part, ...]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def answered(history: list[Turn]) -> list[Turn]:
    """A process that died may have left calls without a result."""
    results = {turn.call_id for turn in history if isinstance(turn, ToolResult)}
    whole: list[Turn] = []
    missing: list[ToolResult] = []
    for turn in history:
        if not isinstance(turn, ToolResult):
            whole += missing
            missing = []
        whole.append(turn)
        if isinstance(turn, AssistantTurn):
            unanswered = (call for call in turn.calls if call.call_id not in results)
            missing = [failed(call, INTERRUPTED) for call in unanswered]
    return whole + missing


def failed(call: ToolCall, why: str) -> ToolResult:
    parts = (Text(f"ERROR: {why}"),)
    return ToolResult(call_id=call.call_id, name=call.name, parts=parts, is_error=True)


def clean(value: Any) -> Any:
    """UTF-8 cannot encode lone surrogates."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [clean(one) for one in value]
    if isinstance(value, dict):
        return {clean(key): clean(one) for key, one in value.items()}
    return value


CHARACTERS_PER_TOKEN = 3.5
TURN_TOKENS = 8
IMAGE_TOKENS = 512
UNBOUNDED_ANSWER_TOKENS = 2048
RESERVE_TOKENS = 512
SMALLEST_SHARE = 4
"""A prompt may use at least one part in so many of the context, however long answers may be."""
NUM_PROTECTED_LAST = 4
SHORTEST_ELIDED = 256
IMAGE_MARK = Text("[An image was left out: this model reads none.]")
UNBOUNDED = 10**12


@dataclass(frozen=True, slots=True)
class Projection:
    turns: tuple[Turn, ...]
    estimated_tokens: int


def budget_tokens(context_window: int | None, max_tokens: int | None) -> int:
    """``None``: the context's length is unknown."""
    if context_window is None:
        return UNBOUNDED
    return max(context_window - _answer_tokens(max_tokens), context_window // SMALLEST_SHARE)


def window_for(budget: int, max_tokens: int | None) -> int:
    return min(budget + _answer_tokens(max_tokens), budget * SMALLEST_SHARE)


def _answer_tokens(max_tokens: int | None) -> int:
    return (max_tokens or UNBOUNDED_ANSWER_TOKENS) + RESERVE_TOKENS


def text_tokens(text: str) -> int:
    return int(len(text) / CHARACTERS_PER_TOKEN) + TURN_TOKENS


def turn_tokens(turn: Turn) -> int:
    if isinstance(turn, AssistantTurn):
        calls = "".join(call.name + json.dumps(call.arguments) for call in turn.calls)
        return text_tokens(turn.text + calls)
    num_images = sum(isinstance(part, Image) for part in turn.parts)
    return text_tokens(text_of(turn.parts)) + IMAGE_TOKENS * num_images


def project(
    turns: Sequence[Turn],
    *,
    budget: int,
    fixed_tokens: int,
    scale: float = 1.0,
    elided_before: int = 0,
) -> Projection:
    """``fixed_tokens``: the estimate of system prompt and tools. ``scale``: the endpoint's tokens
    per estimated one. Turns before ``elided_before`` are shortened for any budget."""
    prompts = {index: turn for index, turn in enumerate(turns) if isinstance(turn, UserTurn)}
    protected = max(len(turns) - NUM_PROTECTED_LAST, *prompts, 0)
    projected = list(turns)
    estimate = fixed_tokens + sum(map(turn_tokens, turns))

    def shorten(first: int, end: int, elide: Callable[[Turn], Turn]) -> None:
        nonlocal estimate
        for index in range(first, end):
            if index < elided_before or estimate * scale > budget:
                shorter = elide(projected[index])
                estimate += turn_tokens(shorter) - turn_tokens(projected[index])
                projected[index] = shorter

    shorten(0, protected, _without_result)
    shorten(0, protected, _without_prose)
    begin = 0
    for prompt, turn in [*prompts.items()][1:]:
        if estimate * scale <= budget:
            break
        mark = Text(f"[{prompt} earlier turns were left out]")
        first = UserTurn((mark, *turn.parts))
        left_out = sum(map(turn_tokens, projected[begin:prompt]))
        estimate += turn_tokens(first) - turn_tokens(turn) - left_out
        projected[prompt], begin = first, prompt
    shorten(max(begin, protected), len(turns), _without_result)
    return Projection(tuple(projected[begin:]), estimate)


def can_shrink(projection: Projection) -> bool:
    return project(projection.turns, budget=0, fixed_tokens=0).turns != projection.turns


def without_images(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The latest prompt keeps its images, so that the endpoint refuses it."""
    prompts = [index for index, turn in enumerate(turns) if isinstance(turn, UserTurn)]
    return tuple(
        replace(turn, parts=tuple(IMAGE_MARK if isinstance(p, Image) else p for p in turn.parts))
        if isinstance(turn, UserTurn | ToolResult) and index not in prompts[-1:]
        else turn
        for index, turn in enumerate(turns)
    )


def _without_result(turn: Turn) -> Turn:
    if not isinstance(turn, ToolResult):
        return turn
    text = text_of(turn.parts)
    if len(text) < SHORTEST_ELIDED and not any(isinstance(part, Image) for part in turn.parts):
        return turn
    return replace(turn, parts=(Text(f"[{len(text)} characters of this result were left out]"),))


def _without_prose(turn: Turn) -> Turn:
    if not isinstance(turn, AssistantTurn) or len(turn.text) < SHORTEST_ELIDED:
        return turn
    return replace(turn, text=f"[{len(turn.text)} characters were left out]", thoughts=())
