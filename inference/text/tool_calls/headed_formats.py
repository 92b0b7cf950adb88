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
from collections.abc import Callable
from functools import partial
from typing import Protocol

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
from inference.text.tool_calls.argument_values import fitted_json
from inference.text.tool_calls.call_parser import MarkedFormat, Opening, PartList
from inference.text.tool_calls.call_reader import CallReader, Expected, KnownTools, ReadCall
from inference.text.tool_calls.grammar_rules import (
    TEXT_TERMINAL,
    CallKeys,
    WantedCalls,
    any_of,
    json_call_rules,
    literal,
    marker_token_id,
)
from inference.text.tool_calls.json_calls import MAX_EXTRA_BRACES, JsonCalls
from inference.text.tool_calls.json_text import WHITESPACE, JsonCopy, ReadState

MAX_HEAD_LENGTH = 300
"""Most characters of name, id and markers together; a longer head is text."""
NOT_IN_HEADS = "{}\r\n"


class Arguments(Protocol):
    """Finds the end of a call's arguments, and reads them."""

    state: ReadState

    def feed(self, text: str, start: int) -> int:
        """The first character ever fed is the opening brace. Returns where it stopped."""
        ...

    def take(self) -> str:
        """The part of the arguments that may be sent, where they are streamed."""
        ...

    def as_json(self) -> tuple[str, bool]:
        """The whole arguments, and whether one may be missing behind a comma. Raises
        ``ValueError`` for what cannot be read."""
        ...


class HeadedCall(CallReader):
    def __init__(
        self,
        *,
        name_of: Callable[[str], str | None],
        tools: KnownTools,
        arguments: Callable[[str], Arguments] = lambda _name: JsonCopy(),
        stream: PartList | None = None,
        opening: str | None = None,
        not_in_head: str = NOT_IN_HEADS,
        tail: str = "}",
    ) -> None:
        """``name_of`` returns ``None`` for a head that names no tool, ``arguments`` the reader of a
        tool's arguments. ``stream``: where arguments go as they are generated. ``opening`` is a
        marker that must come before the head. ``tail``: characters behind the arguments that are
        left out."""
        super().__init__()
        self._name_of = name_of
        self._tools = tools
        self._arguments_of = arguments
        self._stream = stream
        self._expected = Expected((opening,)) if opening else None
        self._not_in_head = not_in_head
        self._tail_characters = tail
        self._num_tail_characters = 0
        self._name = self._head = ""
        self._arguments: Arguments
        self._read = self._read_head if opening is None else self._read_opening

    def close(self) -> None:
        self._end()

    def _read_opening(self, text: str, position: int) -> int:
        assert self._expected is not None
        position = self._expected.feed(text, position)
        if self._expected.state is ReadState.BROKEN:
            return self._end(position)
        if self._expected.state is ReadState.COMPLETE:
            self._read = self._read_head
        return position

    def _read_head(self, text: str, position: int) -> int:
        character = text[position]
        if character == "{" and (name := self._name_of(self._head)):
            self._begin_arguments(name)
            return position
        if character in self._not_in_head or len(self._head) == MAX_HEAD_LENGTH:
            return self._end(position)
        self._head += character
        return position + 1

    def _begin_arguments(self, name: str) -> None:
        self._name = name
        self.has_begun = True
        self._arguments = self._arguments_of(name)
        self._read = self._read_arguments
        if self._stream is not None:
            self.has_streamed = True
            self._stream.start_call(name)

    def _read_arguments(self, text: str, position: int) -> int:
        position = self._arguments.feed(text, position)
        if self._stream is not None:
            self._stream.add_arguments(self._arguments.take())
        if self._arguments.state is ReadState.BROKEN:
            return self._break(position)
        if self._arguments.state is ReadState.COMPLETE:
            self._read = self._read_after
            return position if self._stream is not None else self._add_call(position)
        return position

    def _add_call(self, position: int) -> int:
        try:
            written, has_trailing_comma = self._arguments.as_json()
            fitted = fitted_json(written, self._tools.schema(self._name))
        except ValueError:
            return self._break(position)
        if has_trailing_comma and not self._tools.may_be_all(self._name, fitted):
            return self._break(position)
        self.calls.append(ReadCall(self._name, fitted))
        return position

    def _read_after(self, text: str, position: int) -> int:
        """Closing braces too many, and what else the format has there."""
        most = len(self._tail_characters) * MAX_EXTRA_BRACES
        if text[position] in self._tail_characters and self._num_tail_characters < most:
            self._num_tail_characters += 1
            return position + 1
        return self._end(position)


def plain_name(name: str) -> str | None:
    """``None`` for what no tool is called."""
    is_name = name and not any(character in name for character in f"{WHITESPACE}[]<>\"'")
    return name if is_name else None


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


class KimiFormat(MarkedFormat):
    name = "kimi"
    openings = (KIMI_SECTION[0], KIMI_CALL[0])
    closings = (KIMI_CALL[1], KIMI_SECTION[1])
    inner = (KIMI_CALL[1],)
    markers = (*openings, *closings, KIMI_ARGUMENTS)

    def reader(self, at: Opening) -> HeadedCall:
        expected = KIMI_CALL[0] if at.marker == KIMI_SECTION[0] else None
        return HeadedCall(name_of=_kimi_name, tools=at.tools, stream=at.stream, opening=expected)

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


class DeepSeekFormat(MarkedFormat):
    name = "deepseek"
    openings = (CALLS_BEGIN, CALL_BEGIN)
    closings = (CALL_END, CALLS_END)
    inner = (CALL_END,)
    markers = (*openings, *closings, SEPARATOR)

    def __init__(self, *, writes_fences: bool) -> None:
        """``writes_fences``: the older form, with a type and the arguments in a code block."""
        self._writes_fences = writes_fences

    def reader(self, at: Opening) -> HeadedCall:
        return HeadedCall(
            name_of=_deepseek_name,
            tools=at.tools,
            stream=at.stream,
            not_in_head="{}",
            opening=CALL_BEGIN if at.marker == CALLS_BEGIN else None,
            tail="}`\n",
        )

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


class MistralFormat(MarkedFormat):
    """The older form is a list of JSON objects. Without ``[ARGS]`` the name ends where the
    arguments begin."""

    name = "mistral"
    openings = (MISTRAL_CALLS,)
    markers = (MISTRAL_CALLS, MISTRAL_ARGUMENTS, MISTRAL_CALL_ID)

    def __init__(self, *, writes_lists: bool) -> None:
        """``writes_lists``: the older form. Both are read; grammars ask for the model's own."""
        self._writes_lists = writes_lists

    def reader(self, at: Opening) -> CallReader:
        if at.character in "[{":
            return JsonCalls(at.tools, stream=at.stream)
        return HeadedCall(
            name_of=partial(_mistral_name, at.tools), tools=at.tools, stream=at.stream
        )

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


class HarmonyFormat(MarkedFormat):
    """A message to a function, whose head ``inference.text.answers.reasoning`` has put in one form.
    The model ends with each call, so an answer has one at most. Grammars are of the whole answer
    behind its thinking: its channel too."""

    name = "harmony"
    openings = (CALL_HEAD,)

    def reader(self, at: Opening) -> HeadedCall:
        return HeadedCall(name_of=_harmony_name, tools=at.tools, stream=at.stream)

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


def _harmony_name(head: str) -> str | None:
    return plain_name(head.removesuffix(CALL_HEAD_END)) if head.endswith(CALL_HEAD_END) else None
