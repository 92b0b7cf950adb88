"""JSON calls in a list behind a marker, as several families write them.

<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]                   Granite 3
<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>     Phi-4-mini
<function_call> {"name": "f", "arguments": {"a": 1}}                  Granite 20B
<tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>       Hunyuan
<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>           Nemotron
<|START_ACTION|>[                                                     Command R7B, Command A
    {"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}
]<|END_ACTION|>
functools[{"name": "f", "arguments": {"a": 1}}]                       Firefunction

Objects without the list are read too, and the closing marker may be missing. The model's own ids
are left out: the API gives its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import MarkedCallParser, PartList
from inference.text.tool_calls.call_reader import KnownTools
from inference.text.tool_calls.grammar_rules import (
    CallKeys,
    answer_rules,
    callable_tools,
    json_call_rules,
    literal,
    marker,
    special_marker_ids,
)
from inference.text.tool_calls.json_calls import JsonCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMarkers:
    name: str
    """The format's."""
    opens: str
    closes: str = ""
    """What grammars put behind the list; nothing where the model ends its answer there."""
    also_read: tuple[str, ...] = ()
    """Other opening markers, of relatives."""
    also_closes: tuple[str, ...] = ()
    keys: CallKeys = field(default_factory=CallKeys)
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """The model's keys, and those of a call that they stand for."""
    margins: tuple[str, str, str] = ("", ", ", "")
    """What grammars put before, between and behind the list's objects."""

    @property
    def closings(self) -> tuple[str, ...]:
        return (self.closes, *self.also_closes) if self.closes else self.also_closes


GRANITE = ListMarkers(
    name="granite",
    opens="<|tool_call|>",
    also_read=("<function_call>",),
    also_closes=("<|/tool_call|>",),
)
HUNYUAN = ListMarkers(name="hunyuan", opens="<tool_calls>", closes="</tool_calls>")
NEMOTRON = ListMarkers(name="nemotron", opens="<TOOLCALL>", closes="</TOOLCALL>")
COMMAND_R = ListMarkers(
    name="command_r",
    opens="<|START_ACTION|>",
    closes="<|END_ACTION|>",
    keys=CallKeys(id="tool_call_id", name="tool_name", arguments="parameters"),
    synonyms={"tool_call_id": "id", "tool_name": "name"},
    margins=("\n    ", ",\n    ", "\n"),
)
FUNCTOOLS = ListMarkers(name="functools", opens="functools")
ALL = (GRANITE, HUNYUAN, NEMOTRON, COMMAND_R, FUNCTOOLS)


def markers_of(template: str) -> ListMarkers | None:
    """The markers that the template names; ``None``: none of these."""
    written = {one.opens: one for one in ALL if one is not FUNCTOOLS} | {"functools[": FUNCTOOLS}
    return next((one for text, one in written.items() if text in template), None)


class JsonListFormat:
    def __init__(self, markers: ListMarkers) -> None:
        self.name = markers.name
        self._markers = markers

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        one = self._markers
        return special_marker_ids(tokenizer, (one.opens, *one.also_read, *one.closings))

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        known = KnownTools(tools)

        def begin(opening: str, character: str, stream: PartList | None) -> JsonCalls:
            return JsonCalls(known, stream=stream, synonyms=self._markers.synonyms)

        openings = [self._markers.opens, *self._markers.also_read]
        return MarkedCallParser(openings, begin, closings=self._markers.closings, closed=())

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
        one = self._markers
        before, between, behind = one.margins
        # What one list holds is all that a forced answer calls.
        many = parallel and choice.mode != "required"
        more = f" ({literal(between)} object)*" if parallel else ""
        ends = f" {marker(tokenizer, one.closes)}" if one.closes else ""
        opened, closed = literal(f"[{before}"), literal(f"{behind}]")
        rules = [
            *answer_rules(one.opens, choice, parallel=many, tokenizer=tokenizer, between=""),
            f"rest: {opened} object{more} {closed}{ends}",
            *json_call_rules(called, choice, one.keys),
        ]
        return "\n".join(rules)
