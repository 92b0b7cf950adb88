"""Formats whose calls name the tool in a head and give its arguments as a JSON object.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}
    <|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>
    <|tool_calls_section_end|>                                                         Kimi K2

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f            DeepSeek V3 and R1
    ```json
    {"a": 1}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>…    V3.1

    [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]  Mistral
    [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]abc123def[ARGS]{}                 … its newer

    <|channel|>commentary to=f <|constrain|>json<|message|>{"a": 1}                     gpt-oss

A call is an opening, perhaps; a head with the name; the arguments, from their first brace on; and
what may be too many behind them. All forms of a family are read; grammars ask for the model's own.
The outer markers of a section may be missing. The model's own ids are left out: the API gives its
own.
"""  # noqa: RUF002 - DeepSeek's own characters

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from inference.protocol.generation import ToolDefinition
from inference.text.answers.reasoning import (
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
from inference.text.tool_calls.argument_values import (
    WHITESPACE,
    KnownTools,
    compact_json,
    fitted,
)
from inference.text.tool_calls.block_ends import BracketEnds
from inference.text.tool_calls.call_parser import CallFormat, Notation, Parsed, ReadCall
from inference.text.tool_calls.grammar_rules import (
    TEXT_TERMINAL,
    CallKeys,
    WantedCalls,
    any_of,
    json_call_rules,
    literal,
    marker_token_id,
)
from inference.text.tool_calls.json_calls import MAX_EXTRA_BRACES, json_notation, read_object

MAX_HEAD_LENGTH = 300
"""Most characters of name, id and markers together; a longer head is text."""
NOT_IN_HEADS = "{}\r\n"


Name = Callable[[str], str | None]
"""The tool's name in a head; ``None`` for a head that names none."""


def heads(name_of: Name, not_in_head: str = NOT_IN_HEADS) -> Callable[[str], bool | None]:
    """``Notation.begins`` of calls with heads."""
    head = re.compile(
        rf"\s*(?P<head>[^{re.escape(not_in_head)}]{{0,{MAX_HEAD_LENGTH}}})(?P<brace>\{{)?"
    )

    def begins(text: str) -> bool | None:
        found = head.match(text)
        assert found is not None
        if found["brace"]:
            return name_of(found["head"].rstrip(WHITESPACE)) is not None
        return None if found.end() == len(text) else False

    return begins


def headed_notation(
    name_of: Name, tools: KnownTools, *, not_in_head: str = NOT_IN_HEADS, tail: str = "}"
) -> Notation:
    """``tail``: characters behind the arguments that are left out."""
    spare = re.compile(f"[{tail}]{{0,{len(tail) * MAX_EXTRA_BRACES}}}")

    def parse(text: str) -> Parsed | None:
        brace = text.index("{")
        name = name_of(text[:brace].strip(WHITESPACE))
        assert name is not None
        try:
            written = read_object(text, brace)
            arguments = fitted(written.value, tools.schema(name))
            is_whole = not written.has_trailing_comma or tools.may_be_all(name, arguments)
            if written.lacks_brace or not is_whole:
                return None
            as_written = arguments is written.value
            call = ReadCall(name, written.text if as_written else compact_json(arguments))
        except (ValueError, RecursionError):
            return None
        found = spare.match(text, written.end)
        assert found is not None
        return Parsed((call,), found.end())

    def head(text: str, position: int) -> tuple[str, int] | None:
        brace = text.find("{")
        name = name_of(text[:brace].strip(WHITESPACE)) if position == 0 and brace > 0 else None
        return None if name is None else (name, brace)

    return Notation(
        heads(name_of, not_in_head),
        lambda text, markers: BracketEnds(markers, start=text.index("{")),
        parse,
        head,
    )


def plain_name(name: str) -> str | None:
    """``None`` for what no tool is called."""
    is_name = name and not any(character in name for character in f"{WHITESPACE}[]<>\"'")
    return name if is_name else None


def behind(opening: str, name_of: Name) -> Name:
    """``name_of`` behind a marker that must come before the head."""

    def name(head: str) -> str | None:
        return name_of(head.removeprefix(opening)) if head.startswith(opening) else None

    return name


Pair = tuple[str, str]
"""An opening and a closing marker."""


def section_rules(
    wanted: WantedCalls,
    *,
    section: Pair,
    call: Pair,
    head: Callable[[ToolDefinition], str],
    tail: str = "",
    between: str = "",
) -> list[str]:
    """``head`` and ``tail`` are rules around one call's arguments, ``between`` the format's
    characters between two calls.

    <section> <call> head {arguments} tail </call> <call> … </call> </section>
    """
    opens, ends = map(wanted.marker, call)
    rules = [
        *wanted.answer_rules(section[0], is_section=True),
        f"rest: one{wanted.more('one', between)} {wanted.marker(section[1])}",
        f"one: {opens} ({any_of('one', len(wanted.tools))}) {ends}",
    ]
    for index, tool in enumerate(wanted.tools):
        rules.append(f"one_{index}: {head(tool)} arguments_{index} {tail}".rstrip())
        rules.append(wanted.arguments_rule(index))
    return rules


KIMI_SECTION = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
KIMI_CALL = ("<|tool_call_begin|>", "<|tool_call_end|>")
KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"
KIMI_NAMESPACE = "functions."

_COUNT = re.compile(r":\d+\Z")


class KimiFormat(CallFormat):
    name = "kimi"
    openings = (KIMI_SECTION[0], KIMI_CALL[0])
    closings = (KIMI_CALL[1], KIMI_SECTION[1])
    inner = (KIMI_CALL[1],)
    markers = (*openings, *closings, KIMI_ARGUMENTS)

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        opening = KIMI_CALL[0] if marker == KIMI_SECTION[0] else ""
        return (headed_notation(behind(opening, _kimi_name), tools),)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        def head(tool: ToolDefinition) -> str:
            name = literal(f"{KIMI_NAMESPACE}{tool.name}:")
            return f"{name} /[0-9]{{1,3}}/ {wanted.marker(KIMI_ARGUMENTS)}"

        return section_rules(wanted, section=KIMI_SECTION, call=KIMI_CALL, head=head)


def _kimi_name(head: str) -> str | None:
    identity = head.rstrip(WHITESPACE).removesuffix(KIMI_ARGUMENTS).strip(WHITESPACE)
    return plain_name(_COUNT.sub("", identity).removeprefix(KIMI_NAMESPACE))


CALLS_BEGIN = "<｜tool▁calls▁begin｜>"  # noqa: RUF001
CALLS_END = "<｜tool▁calls▁end｜>"  # noqa: RUF001
CALL_BEGIN = "<｜tool▁call▁begin｜>"  # noqa: RUF001
CALL_END = "<｜tool▁call▁end｜>"  # noqa: RUF001
SEPARATOR = "<｜tool▁sep｜>"  # noqa: RUF001
FENCE = "```json"
TYPE = "function"


class DeepSeekFormat(CallFormat):
    name = "deepseek"
    openings = (CALLS_BEGIN, CALL_BEGIN)
    closings = (CALL_END, CALLS_END)
    inner = (CALL_END,)
    markers = (*openings, *closings, SEPARATOR)

    def __init__(self, *, writes_fences: bool) -> None:
        """``writes_fences``: the older form, with a type and the arguments in a code block."""
        self._writes_fences = writes_fences

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        name_of = behind(CALL_BEGIN if marker == CALLS_BEGIN else "", _deepseek_name)
        return (headed_notation(name_of, tools, not_in_head="{}", tail="}`\n"),)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        separator = wanted.marker(SEPARATOR)

        def head(tool: ToolDefinition) -> str:
            if not self._writes_fences:
                return f"{literal(tool.name)} {separator}"
            fenced = literal(f"{tool.name}\n{FENCE}\n")
            return f"{literal(TYPE)} {separator} {fenced}"

        return section_rules(
            wanted,
            section=(CALLS_BEGIN, CALLS_END),
            call=(CALL_BEGIN, CALL_END),
            head=head,
            tail=literal("\n```") if self._writes_fences else "",
            between="\n" if self._writes_fences else "",
        )


def _deepseek_name(head: str) -> str | None:
    first, separator, second = head.partition(SEPARATOR)
    name = second.strip(WHITESPACE).removesuffix("json").rstrip("`").strip(WHITESPACE)
    if name and first.strip(WHITESPACE) != TYPE:
        return None
    return plain_name(name or first.strip(WHITESPACE)) if separator else None


MISTRAL_CALLS = "[TOOL_CALLS]"
MISTRAL_ARGUMENTS = "[ARGS]"
MISTRAL_CALL_ID = "[CALL_ID]"


class MistralFormat(CallFormat):
    """The older form is a list of JSON objects. Without ``[ARGS]`` the name ends where the
    arguments begin."""

    name = "mistral"
    openings = (MISTRAL_CALLS,)
    markers = (MISTRAL_CALLS, MISTRAL_ARGUMENTS, MISTRAL_CALL_ID)

    def __init__(self, *, writes_lists: bool) -> None:
        """``writes_lists``: the older form. Both are read; grammars ask for the model's own."""
        self._writes_lists = writes_lists

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        return json_notation(tools), headed_notation(partial(_mistral_name, tools), tools)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        start = wanted.answer_rules(MISTRAL_CALLS, is_section=self._writes_lists)
        if not self._writes_lists:
            return [*start, *_named_call_rules(wanted)]
        rest = f'rest: "[" object{wanted.more("object", ", ")} "]"'
        return [*start, rest, *json_call_rules(wanted, CallKeys())]


def _mistral_name(tools: KnownTools, head: str) -> str | None:
    """``None`` when what stands before the arguments is no name. Without a marker behind it, only a
    tool's is one."""
    head = head.rstrip(WHITESPACE)
    name = head.removesuffix(MISTRAL_ARGUMENTS).partition(MISTRAL_CALL_ID)[0].strip(WHITESPACE)
    return plain_name(name) if head.endswith(MISTRAL_ARGUMENTS) or name in tools else None


def _named_call_rules(wanted: WantedCalls) -> list[str]:
    rules = [f"rest: {any_of('rest', len(wanted.tools))}"]
    call_id = ""
    if marker_token_id(wanted.tokenizer, MISTRAL_CALL_ID) is not None:
        call_id = f"({wanted.marker(MISTRAL_CALL_ID)} /[a-zA-Z0-9]{{9}}/)? "
    for index, tool in enumerate(wanted.tools):
        head = f"{literal(tool.name)} {call_id}{wanted.marker(MISTRAL_ARGUMENTS)}"
        rules += [f"rest_{index}: {head} arguments_{index}", wanted.arguments_rule(index)]
    return rules


class HarmonyFormat(CallFormat):
    """A message to a function, whose head ``inference.text.answers.reasoning`` has put in one form.
    The model ends with each call, so an answer has one at most. Grammars are of the whole answer
    behind its thinking: its channel too."""

    name = "harmony"
    openings = (CALL_HEAD,)

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        return (headed_notation(_harmony_name, tools),)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        markers = (CHANNEL, MESSAGE, CONSTRAIN, END, START)
        channel, message, constrain, end, start = map(
            replace(wanted, markers=markers).marker, markers
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


def _harmony_name(head: str) -> str | None:
    return plain_name(head.removesuffix(CALL_HEAD_END)) if head.endswith(CALL_HEAD_END) else None
