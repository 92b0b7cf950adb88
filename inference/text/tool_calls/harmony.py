"""gpt-oss: a message to a function, whose head ``inference.text.answers.harmony`` has put in one
form.

    <|channel|>commentary to=f <|constrain|>json<|message|>{"a": 1}

The model ends with each call, so an answer has one at most. Grammars are of the whole answer behind
its thinking: its channel too.
"""

from __future__ import annotations

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
from inference.text.tool_calls.call_format import MarkedFormat
from inference.text.tool_calls.call_parser import PartList
from inference.text.tool_calls.call_reader import KnownTools
from inference.text.tool_calls.grammar_rules import TEXT_TERMINAL, WantedCalls, any_of, literal
from inference.text.tool_calls.headed_call import NamedCall, plain_name


class HarmonyFormat(MarkedFormat):
    name = "harmony"
    openings = (CALL_HEAD,)

    def _reader(
        self, tools: KnownTools, opening: str, character: str, stream: PartList | None
    ) -> NamedCall:
        return NamedCall(name_of=_name, tools=tools, stream=stream)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        channel, message, constrain, end, start = map(
            wanted.marker, (CHANNEL, MESSAGE, CONSTRAIN, END, START)
        )
        rules = [f"call: {channel} ({any_of('call', len(wanted.tools))})", TEXT_TERMINAL]
        for index, tool in enumerate(wanted.tools):
            head = literal(f"commentary to={NAMESPACE}{tool.name} ")
            json_head = f'{constrain} "json" {message}'
            rules.append(f"call_{index}: {head} {json_head} arguments_{index}")
            rules.append(wanted.arguments_rule(index))
        if wanted.are_forced:
            return ["start: call", *rules]
        spoken = f'{channel} "commentary" {message} TEXT {end} {start} {literal(ROLE)}'
        return [
            "start: final | preamble? call",
            f'final: {channel} "final" {message} TEXT',
            f"preamble: {spoken}",
            *rules,
        ]


def _name(head: str) -> str | None:
    return plain_name(head.removesuffix(CALL_HEAD_END)) if head.endswith(CALL_HEAD_END) else None
