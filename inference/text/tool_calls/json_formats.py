"""Formats whose calls are JSON: objects in markers, in a list behind a marker, or bare; or a head
with the name, and the arguments as an object.

text <tool_call>                                                      Hermes, Qwen2.5, Qwen3, SmolLM
{"name": "f", "arguments": {"a": 1}}
</tool_call>
<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]                   Granite 3, Phi-4-mini
<function_call> {"name": "f", "arguments": {"a": 1}}                  Granite 20B
<tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>       Hunyuan
<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>           Nemotron
<|START_ACTION|>[                                                     Command R7B, Command A
    {"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}
]<|END_ACTION|>
functools[{"name": "f", "arguments": {"a": 1}}]                       Firefunction
[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]                    Mistral
[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]abc123def[ARGS]{}    … its newer
<|channel|>commentary to=f <|constrain|>json<|message|>{"a": 1}       gpt-oss

<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}
<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>
<|tool_calls_section_end|>                                            Kimi K2
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f            DeepSeek V3 and R1
```json
{"a": 1}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>…    V3.1

All forms of a family are read, and outer markers may be missing; grammars ask for the model's own.
The model's ids are left out: the API gives its own.
"""  # noqa: RUF002 - DeepSeek's own characters

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from inference.text.grammars import literal
from inference.text.reasoning import (
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
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.argument_values import WHITESPACE, KnownTools, fitted
from inference.text.tool_calls.call_parser import CallFormat, Notation, Parsed, ReadCall
from inference.text.tool_calls.grammar_rules import (
    TEXT_TERMINAL,
    CallKeys,
    WantedCalls,
    any_of,
    json_call_rules,
)
from inference.text.tool_calls.json_calls import (
    MAX_EXTRA_BRACES,
    NO_SYNONYMS,
    JsonStyle,
    WrittenObject,
    json_notation,
    read_object,
)


class ListMarkers(NamedTuple):
    name: str
    openings: tuple[str, ...]
    """The first is the model's own, others are relatives'."""
    closings: tuple[str, ...] = ()
    ends_list: bool = True
    keys: CallKeys = CallKeys()
    synonyms: Mapping[str, str] = NO_SYNONYMS
    """Maps the model's keys to a call's."""
    margins: tuple[str, str, str] = ("", ", ", "")
    """Texts before, between and behind the list's objects."""
    brackets: str = "[]"
    """Empty: several calls follow one another, each in markers of its own or in one pair."""


HERMES = ListMarkers(
    "hermes", ("<tool_call>",), ("</tool_call>",), margins=("\n", "\n", "\n"), brackets=""
)
GRANITE = ListMarkers(
    "granite", ("<|tool_call|>", "<function_call>"), ("<|/tool_call|>",), ends_list=False
)
HUNYUAN = ListMarkers("hunyuan", ("<tool_calls>",), ("</tool_calls>",))
NEMOTRON = ListMarkers("nemotron", ("<TOOLCALL>",), ("</TOOLCALL>",))
COMMAND_R = ListMarkers(
    "command_r",
    ("<|START_ACTION|>",),
    ("<|END_ACTION|>",),
    keys=CallKeys(id="tool_call_id", name="tool_name", arguments="parameters"),
    synonyms={"tool_call_id": "id", "tool_name": "name"},
    margins=("\n    ", ",\n    ", "\n"),
)
FUNCTOOLS = ListMarkers("functools", ("functools",), ends_list=False)


class JsonListFormat(CallFormat):
    def __init__(self, markers: ListMarkers) -> None:
        self.name = markers.name
        self.openings = markers.openings
        self.closings = markers.closings
        self.markers = (*self.openings, *self.closings)
        self._list = markers

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        return (json_notation(tools, JsonStyle(synonyms=self._list.synonyms)),)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        (before, between, behind), brackets = self._list.margins, self._list.brackets
        ends = f" {wanted.marker(self.closings[0])}" if self._list.ends_list else ""
        opened, closed = literal(brackets[:1] + before), literal(behind + brackets[1:])
        more = wanted.more("object", between) if brackets else ""
        return [
            *wanted.answer_rules(self.openings[0], between=between, is_section=bool(brackets)),
            f"rest: {opened} object{more} {closed}{ends}",
            *json_call_rules(wanted, self._list.keys),
        ]


class PlainFormat(CallFormat):
    """Calls that a grammar forces on a model with an unknown format: bare objects, one a line."""

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
            f"start: object{wanted.more('object', chr(10))}",
            *json_call_rules(wanted, CallKeys()),
        ]


MAX_HEAD_LENGTH = 300
"""Limits name, id and markers together; a longer head is text."""
NAME = r"""(?P<name>[^\s\[\]<>"'{}]+?)"""


_SPARE = re.compile(rf"\}}{{0,{MAX_EXTRA_BRACES}}}(?:\s*`{{1,3}})?")
"""Matches too many braces behind arguments, and the end of a code block."""


def headed_notation(
    head: str,
    tools: KnownTools,
    *,
    read: Callable[[str, int], WrittenObject] = read_object,
) -> Notation:
    """``head``: a pattern with a group ``name``. Without its ``mark`` only offered tools match."""
    whole = re.compile(rf"{head}\s*(?=\{{)")
    begun = re.compile(rf"[{WHITESPACE}]*[^{{}}]{{0,{MAX_HEAD_LENGTH}}}\Z")

    def head_of(text: str, position: int = 0) -> tuple[str, int] | None:
        start = len(text) - len(text.lstrip(WHITESPACE))
        found = whole.match(text, start, start + MAX_HEAD_LENGTH + 1)
        if found is None or position > 0:
            return None
        name = found["name"]
        is_named = found.groupdict().get("mark", "") is not None or name in tools
        return (name, found.end()) if is_named else None

    def begins(text: str) -> bool | None:
        return True if head_of(text) is not None else None if begun.match(text) else False

    def parse(text: str) -> Parsed | None:
        if (headed := head_of(text)) is None:
            return None
        name, start = headed
        try:
            written = read(text, start)
            if written.lacks_brace:
                return None
            call = ReadCall.of(name, fitted(written.value, tools.schema(name)))
        except (ValueError, RecursionError):
            return None
        found = _SPARE.match(text, written.end)
        assert found is not None
        return Parsed((call,), found.end())

    return Notation(begins, parse, head_of)


class Section(NamedTuple):
    name: str
    openings: tuple[str, str]
    closings: tuple[str, str]
    """The section's and the call's."""
    separator: str
    head: str
    """A pattern."""
    written: Callable[[str], tuple[str, str]]
    """Returns the head of a tool's name, around the call's number."""
    is_counted: bool = False
    between: str = ""
    tail: str = ""
    """Follows a call's arguments."""


class SectionFormat(CallFormat):
    """``<section> <call> head {arguments} tail </call> <call> … </call> </section>``"""

    def __init__(self, section: Section) -> None:
        self.name = section.name
        self.openings = section.openings
        self.closings = section.closings[::-1]
        self.markers = (*section.openings, *section.closings, section.separator)
        self._section = section

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        section, call = self.openings
        head = f"{re.escape(call) if marker == section else ''}{self._section.head}"
        return (headed_notation(head, tools),)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        section, (opening, call) = self._section, self.openings
        call_end, section_end = map(wanted.marker, self.closings)
        rules = [
            *wanted.answer_rules(opening, is_section=True),
            f"rest: one{wanted.more('one', section.between)} {section_end}",
            f"one: {wanted.marker(call)} ({any_of('one', len(wanted.tools))}) {call_end}",
        ]
        tail = literal(section.tail) if section.tail else ""
        for index, tool in enumerate(wanted.tools):
            before, after = map(wanted.marker, section.written(tool.name))
            number = "/[0-9]{1,3}/" if section.is_counted else ""
            rules.append(f"one_{index}: {before} {number} {after} arguments_{index} {tail}")
            rules.append(wanted.arguments_rule(index))
        return rules


_KIMI_SEPARATOR = "<|tool_call_argument_begin|>"
KIMI = Section(
    "kimi",
    ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    ("<|tool_calls_section_end|>", "<|tool_call_end|>"),
    _KIMI_SEPARATOR,
    rf"[ \t]*(?:functions\.)?{NAME}(?::\d+)?[ \t]*(?:{re.escape(_KIMI_SEPARATOR)})?",
    lambda name: (f"functions.{name}:", _KIMI_SEPARATOR),
    is_counted=True,
)
CALLS_BEGIN = "<｜tool▁calls▁begin｜>"  # noqa: RUF001
CALLS_END = "<｜tool▁calls▁end｜>"  # noqa: RUF001
CALL_BEGIN = "<｜tool▁call▁begin｜>"  # noqa: RUF001
CALL_END = "<｜tool▁call▁end｜>"  # noqa: RUF001
SEPARATOR = "<｜tool▁sep｜>"  # noqa: RUF001
FENCE = "```json"
DEEPSEEK_V31 = Section(
    "deepseek_v31",
    (CALLS_BEGIN, CALL_BEGIN),
    (CALLS_END, CALL_END),
    SEPARATOR,
    rf"\s*(?P<type>function\s*{SEPARATOR}\s*)?{NAME}\s*(?(type)|{SEPARATOR})\s*"
    r"(?:`+(?:json)?)?",
    lambda name: (name, SEPARATOR),
)
DEEPSEEK = DEEPSEEK_V31._replace(
    name="deepseek",
    written=lambda name: (f"function{SEPARATOR}{name}\n{FENCE}\n", ""),
    between="\n",
    tail="\n```",
)
"""The older form, with a type and the arguments in a code block."""


MISTRAL_CALLS, MISTRAL_ARGUMENTS, MISTRAL_CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class MistralFormat(CallFormat):
    """Without ``[ARGS]`` the name ends where the arguments begin, and only a tool's is one."""

    openings = (MISTRAL_CALLS,)
    markers = (MISTRAL_CALLS, MISTRAL_ARGUMENTS, MISTRAL_CALL_ID)

    def __init__(self, *, writes_lists: bool) -> None:
        self.name = "mistral" if writes_lists else "mistral_named"
        self._writes_lists = writes_lists

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        head = rf"{NAME}[ \t]*(?:\[CALL_ID\][^{{}}\[\]\n]*)?(?P<mark>\[ARGS\])?"
        return json_notation(tools), headed_notation(head, tools)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        start = wanted.answer_rules(MISTRAL_CALLS, is_section=self._writes_lists)
        if self._writes_lists:
            rest = f'rest: "[" object{wanted.more("object", ", ")} "]"'
            return [*start, rest, *json_call_rules(wanted, CallKeys())]
        rules = [*start, f"rest: {any_of('rest', len(wanted.tools))}"]
        call_id = ""
        if MISTRAL_CALL_ID in wanted.marker_ids:
            call_id = f"({wanted.marker(MISTRAL_CALL_ID)} /[a-zA-Z0-9]{{9}}/)? "
        for index, tool in enumerate(wanted.tools):
            head = f"{literal(tool.name)} {call_id}{wanted.marker(MISTRAL_ARGUMENTS)}"
            rules += [f"rest_{index}: {head} arguments_{index}", wanted.arguments_rule(index)]
        return rules


class HarmonyFormat(CallFormat):
    """``inference.text.reasoning`` has put the head in one form. The model ends with each call.
    Grammars are of the whole answer behind its thinking, with its channel."""

    name = "harmony"
    openings = (CALL_HEAD,)
    markers = (CHANNEL, MESSAGE, CONSTRAIN, END, START)

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return frozenset()

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        return (headed_notation(f"{NAME}{re.escape(CALL_HEAD_END)}", tools),)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        channel, message, constrain, end, start = map(wanted.marker, self.markers)
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
