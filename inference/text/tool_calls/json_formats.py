"""Formats whose calls are JSON: objects in markers, in a list behind a marker, or bare.

text <tool_call>                                                      Hermes, Qwen2.5, Qwen3, SmolLM
{"name": "f", "arguments": {"a": 1}}
</tool_call>
<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]                   Granite 3
<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>     Phi-4-mini
<function_call> {"name": "f", "arguments": {"a": 1}}                  Granite 20B
<tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>       Hunyuan
<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>           Nemotron
<|START_ACTION|>[                                                     Command R7B, Command A
    {"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}
]<|END_ACTION|>
functools[{"name": "f", "arguments": {"a": 1}}]                       Firefunction

Objects with and without a list are read everywhere, and closing markers may be missing. The model's
own ids are left out: the API gives its own. Whitespace around the calls is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inference.text.tool_calls.argument_values import KnownTools
from inference.text.tool_calls.call_parser import CallFormat, Notation
from inference.text.tool_calls.grammar_rules import CallKeys, WantedCalls, json_call_rules, literal
from inference.text.tool_calls.json_calls import JsonStyle, json_notation

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
NEWLINE = "\n"


class HermesFormat(CallFormat):
    """Several calls follow one another, each in markers of its own or in one pair."""

    name = "hermes"
    openings = (OPEN,)
    closings = (CLOSE,)
    markers = (OPEN, CLOSE)

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        return (json_notation(tools),)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        line = literal(NEWLINE)
        return [
            *wanted.answer_rules(OPEN, between=NEWLINE),
            f"rest: {line} object {line} {wanted.marker(CLOSE)}",
            *json_call_rules(wanted, CallKeys()),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMarkers:
    name: str
    opens: str
    closes: str = ""
    """The grammar's end of the list; empty where the model ends its answer there."""
    also_read: tuple[str, ...] = ()
    """Other opening markers, of relatives."""
    also_closes: tuple[str, ...] = ()
    keys: CallKeys = field(default_factory=CallKeys)
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """The model's keys, and those of a call that they stand for."""
    margins: tuple[str, str, str] = ("", ", ", "")
    """The grammar's texts before, between and behind the list's objects."""


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


class JsonListFormat(CallFormat):
    closed = ()

    def __init__(self, markers: ListMarkers) -> None:
        self.name = markers.name
        self.openings = (markers.opens, *markers.also_read)
        self.closings = (*((markers.closes,) if markers.closes else ()), *markers.also_closes)
        self.markers = (*self.openings, *self.closings)
        self._list = markers

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        return (json_notation(tools, JsonStyle(synonyms=self._list.synonyms)),)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        before, between, behind = self._list.margins
        ends = f" {wanted.marker(self._list.closes)}" if self._list.closes else ""
        opened, closed = literal(f"[{before}"), literal(f"{behind}]")
        return [
            *wanted.answer_rules(self._list.opens, is_section=True),
            f"rest: {opened} object{wanted.more('object', between)} {closed}{ends}",
            *json_call_rules(wanted, self._list.keys),
        ]


class PlainFormat(CallFormat):
    """Calls that a grammar forces on a model with an unknown format: bare objects, one a line. The
    answer begins with them."""

    name = "plain"
    openings = ("{", "[")
    bare = openings

    def opens(self, marker: str, *, is_first: bool, begins_line: bool) -> bool:
        return is_first

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        return (json_notation(tools, JsonStyle(is_marked=False)),)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        if not wanted.are_forced:
            return []
        return [
            f"start: object{wanted.more('object', NEWLINE)}",
            *json_call_rules(wanted, CallKeys()),
        ]
