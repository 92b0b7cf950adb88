"""gpt-oss: a message to a function, whose head ``inference.text.answers.harmony`` has put in one
form.

    <|channel|>commentary to=f <|constrain|>json<|message|>{"a": 1}

The model ends with each call, so an answer has one at most. Grammars are of the whole answer behind
its thinking: its channel too.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.harmony import (
    CALL_HEAD,
    CALL_HEAD_END,
    CHANNEL,
    CONSTRAIN,
    END,
    MESSAGE,
    NAMESPACE,
    ROLE,
    START,
)
from inference.text.answers.parts import ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import MarkedCallParser, PartList
from inference.text.tool_calls.call_reader import KnownTools
from inference.text.tool_calls.grammar_rules import (
    TEXT_TERMINAL,
    arguments_schema,
    callable_tools,
    json_rule,
    literal,
    marker,
)
from inference.text.tool_calls.headed_call import NamedCall, plain_name


class HarmonyFormat:
    name = "harmony"

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return frozenset()

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        known = KnownTools(tools)

        def begin(opening: str, character: str, stream: PartList | None) -> NamedCall:
            return NamedCall(name_of=_name, tools=known, stream=stream)

        return MarkedCallParser([CALL_HEAD], begin)

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        tokenizer: Tokenizer,
    ) -> str | None:
        called = callable_tools(tools, choice, parallel=parallel)
        if not called:
            return None
        channel, message, constrain, end, start = (
            marker(tokenizer, text) for text in (CHANNEL, MESSAGE, CONSTRAIN, END, START)
        )
        rules = [
            f"call: {channel} ({' | '.join(f'call_{index}' for index in range(len(called)))})",
            TEXT_TERMINAL,
        ]
        for index, tool in enumerate(called):
            head = literal(f"commentary to={NAMESPACE}{tool.name} ")
            json_head = f'{constrain} "json" {message}'
            rules.append(f"call_{index}: {head} {json_head} arguments_{index}")
            rules.append(json_rule(f"arguments_{index}", arguments_schema(tool, choice)))
        if choice.mode == "required":
            return "\n".join(["start: call", *rules])
        spoken = f'{channel} "commentary" {message} TEXT {end} {start} {literal(ROLE)}'
        return "\n".join(
            [
                "start: final | preamble? call",
                f'final: {channel} "final" {message} TEXT',
                f"preamble: {spoken}",
                *rules,
            ]
        )


def _name(head: str) -> str | None:
    return plain_name(head.removesuffix(CALL_HEAD_END)) if head.endswith(CALL_HEAD_END) else None
