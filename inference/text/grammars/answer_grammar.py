"""One grammar for a whole answer: JSON text, tool calls or either, after thinking or at once.

    prompt has opened the block   everything up to its end is free, then  space? (calls | JSON)
    model may open one itself     (<think> anything </think> space?)? (calls | JSON)
    thinking is disabled          (calls | JSON)

Text of the parts is llguidance's: lark or JSON schema, put together as named grammars.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from inference.protocol.engine import Grammar
from inference.text.answers.reasoning import ROLE, THOUGHTS, HarmonyTokens, ReasoningMarkers
from inference.text.grammars.parts import grammar_text

SPACE_RULE = r"SPACE: /[ \n]{1,4}/"
"""Between a thinking block and the answer; not part of either."""


class Thinking(Enum):
    NONE = "none"
    OPENED = "opened by the prompt"
    POSSIBLE = "up to the model"


LEADS = {Thinking.NONE: "", Thinking.OPENED: "SPACE? ", Thinking.POSSIBLE: "thought? "}


def answer_grammar(
    parts: Sequence[dict[str, Any]],
    *,
    thinking: Thinking = Thinking.NONE,
    markers: ReasoningMarkers | None = None,
    end_token_ids: Sequence[int] = (),
    num_calls: int = 0,
) -> Grammar:
    """The answer is one of ``parts``, the first ``num_calls`` of which are calls.
    ``end_token_ids`` are the model's, which do not end an answer
    inside its thinking. ``markers`` are there wherever thinking is. Raises ``SchemaError``."""
    channels = None if markers is None else markers.channels
    if thinking is Thinking.NONE and len(parts) == 1 and channels is None:
        return Grammar(text=grammar_text(parts))
    named = [{"name": f"part_{index}", **part} for index, part in enumerate(parts)]
    # Where an answer is a message in a channel, its calls have their own in their rules.
    head = "" if channels is None else f'<[{channels.channel}]> "final" <[{channels.message}]> '
    heads = [head if index >= num_calls else "" for index in range(len(named))]
    answer = " | ".join(f"{head}@{part['name']}" for head, part in zip(heads, named, strict=True))
    rules = [f"start: {LEADS[thinking]}({answer})"]
    if channels is not None and thinking is not Thinking.NONE:
        rules.append(_channel_rule(channels, end_token_ids))
    elif thinking is Thinking.POSSIBLE:
        rules.append(_thought_rule(markers, end_token_ids))
    if thinking is not Thinking.NONE and channels is None:
        rules.append(SPACE_RULE)
    is_open = thinking is Thinking.OPENED
    return Grammar(
        text=grammar_text([{"lark_grammar": "\n".join(rules)}, *named]),
        starts_after_token_id=markers.end_token_id if is_open and markers else None,
    )


def _thought_rule(markers: ReasoningMarkers | None, end_token_ids: Sequence[int]) -> str:
    """The rule of a thinking block, by token ids, so that it may be closed in the middle of a
    character."""
    assert markers is not None
    bound = ",".join(map(str, [markers.end_token_id, *end_token_ids]))
    return f"thought: <[{markers.start_token_id}]> <[^{bound}]>* <[{markers.end_token_id}]> SPACE?"


def _channel_rule(channels: HarmonyTokens, end_token_ids: Sequence[int]) -> str:
    bound = ",".join(map(str, dict.fromkeys([channels.end, channels.start, *end_token_ids])))
    return (
        f'thought: <[{channels.channel}]> "{THOUGHTS}" <[{channels.message}]> <[^{bound}]>* '
        f'<[{channels.end}]> <[{channels.start}]> "{ROLE}"'
    )
