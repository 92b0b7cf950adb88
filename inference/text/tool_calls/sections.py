"""Kimi K2 and DeepSeek: calls in a section between special tokens, each named in a head.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}
    <|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>
    <|tool_calls_section_end|>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f            V3 and R1
    ```json
    {"a": 1}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>…   V3.1

Both of DeepSeek's forms are read; grammars ask for the model's own. The outer markers may be
missing. Kimi's own ids, which count the calls, are left out: the API gives its own.
"""  # noqa: RUF002 - DeepSeek's own characters

from __future__ import annotations

import re
from collections.abc import Callable

from inference.protocol.generation import ToolDefinition
from inference.text.tool_calls.call_format import MarkedFormat
from inference.text.tool_calls.call_parser import PartList
from inference.text.tool_calls.call_reader import KnownTools
from inference.text.tool_calls.grammar_rules import WantedCalls, any_of, literal
from inference.text.tool_calls.headed_call import NamedCall, plain_name
from inference.text.tool_calls.json_text import WHITESPACE

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

    def _reader(
        self, tools: KnownTools, opening: str, character: str, stream: PartList | None
    ) -> NamedCall:
        expected = KIMI_CALL[0] if opening == KIMI_SECTION[0] else None
        return NamedCall(name_of=_kimi_name, tools=tools, stream=stream, opening=expected)

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

    def _reader(
        self, tools: KnownTools, opening: str, character: str, stream: PartList | None
    ) -> NamedCall:
        return NamedCall(
            name_of=_deepseek_name,
            tools=tools,
            stream=stream,
            not_in_head="{}",
            opening=CALL_BEGIN if opening == CALLS_BEGIN else None,
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
