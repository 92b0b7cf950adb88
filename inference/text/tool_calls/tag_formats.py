"""GLM, Qwen-Coder and Seed-OSS: calls as tags, with each argument's value as plain text.

    <tool_call>f                 <tool_call>             <seed:tool_call>
    <arg_key>a</arg_key>         <function=f>            <function=f>
    <arg_value>1</arg_value>     <parameter=a>           <parameter=a>1</parameter>
    </tool_call>                 1                       </function>
                                 </parameter>            </seed:tool_call>
                                 </function>
                                 </tool_call>

A value ends at the closing tag behind which the call continues or ends. Calls in JSON, as relatives
write them, are read between the outer tags. Whitespace around the calls is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.argument_values import (
    WHITESPACE,
    KnownTools,
    allowed_types,
    alternatives,
    as_json,
    compact_json,
    read_json,
)
from inference.text.tool_calls.argument_values import is_text as is_schema_of_text
from inference.text.tool_calls.block_ends import TagEnds
from inference.text.tool_calls.call_parser import CallFormat, Notation, Parsed, ReadCall
from inference.text.tool_calls.grammar_rules import (
    MAX_TAG_LENGTH,
    TAG_TEXT,
    TagStyle,
    WantedCalls,
    any_of,
    function_rules,
    head_rules,
    literal,
    marker,
)
from inference.text.tool_calls.json_calls import json_notation

FUNCTION = "<function="
PARAMETER = "<parameter="
PARAMETER_END = "</parameter>"
SPACE = f"[{WHITESPACE}]*"
IS_TEXT = ' string="true"'
"""The mark of a text in formats that mark values; JSON has another."""


@dataclass(frozen=True, kw_only=True)
class Tags:
    """How a format writes one call."""

    function: str = FUNCTION
    """The text before the name; empty where the name comes at once."""
    name: str
    """Regular expression of the name, a group, with what ends it."""
    name_begun: str
    """Regular expression of a name that is not whole yet."""
    keeps_name_end: bool = False
    """Whether the character that ends the name begins what follows."""
    needs_known_name: bool = False
    """Whether a name without tags around the call must be a tool's."""
    argument: str = PARAMETER
    key: str
    """Regular expression of the rest of its tag: the group ``key``, and ``mark`` where values are
    marked."""
    value_end: str = PARAMETER_END
    ends: tuple[str, ...]
    closing: str = ""
    """The one of ``ends`` that closes the block, so that anything may follow."""
    doubts: str
    """Regular expression of text in a value that may be the format's: the next argument, or a
    closing tag in its place."""
    has_own_lines: bool = False

    @cached_property
    def any_argument(self) -> re.Pattern[str]:
        """A value ends at the tag behind which the call continues or ends."""
        follows = rf"(?={SPACE}(?:{re.escape(self.argument)}|\Z))"
        head = f"{SPACE}{re.escape(self.argument)}{self.key}"
        return re.compile(f"{head}(?P<value>(?s:.*?)){re.escape(self.value_end)}{follows}")

    @cached_property
    def any_end(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.ends)))


class TaggedCalls:
    """One call whose arguments stand between tags. It is a call once its end was read."""

    def __init__(
        self, tools: KnownTools, tags: Tags, *, is_wrapped: bool, follows_grammar: bool = False
    ) -> None:
        """``is_wrapped``: the call stands in tags of its own or a section's, else behind
        ``tags.function``. ``follows_grammar``: a value that names the format's tags is whole all
        the same."""
        self._tools = tools
        self._tags = tags
        self._is_wrapped = is_wrapped
        self._function = tags.function if is_wrapped else ""
        self._follows_grammar = follows_grammar

    def notation(self) -> Notation:
        return Notation(self._begins, self._ends, self._parse)

    def _begins(self, text: str) -> bool | None:
        text = text.lstrip(WHITESPACE)
        if not text.startswith(self._function):
            return None if self._function.startswith(text) else False
        written = text[len(self._function) :]
        if (found := re.match(self._tags.name, written)) is None:
            is_begun = not written or re.fullmatch(self._tags.name_begun, written)
            return None if is_begun else False
        name = found.group(1).strip(WHITESPACE)
        is_known = name in self._tools or not self._tags.needs_known_name
        return bool(name) and (is_known or self._is_wrapped)

    def _head(self, text: str) -> tuple[str, int]:
        """The name, and where the arguments begin."""
        start = len(text) - len(text.lstrip(WHITESPACE)) + len(self._function)
        found = re.compile(self._tags.name).match(text, start)
        assert found is not None
        return found.group(1).strip(WHITESPACE), found.end() - self._tags.keeps_name_end

    def _ends(self, text: str, markers: Sequence[str]) -> TagEnds:
        _, begin = self._head(text)
        longest = max(map(len, self._tags.ends))
        return TagEnds(
            markers,
            lambda text, start: self._find_end(text, begin, start),
            closing=self._tags.closing,
            longest=longest,
        )

    def _find_end(self, text: str, begin: int, start: int) -> re.Match[str] | None:
        """An end stands behind a value, or behind the name."""
        for end in self._tags.any_end.finditer(text, max(begin, start)):
            before = text[begin : end.start()].rstrip(WHITESPACE)
            if not before or before.endswith(self._tags.value_end):
                return end
        return None

    def _parse(self, text: str) -> Parsed | None:
        name, begin = self._head(text)
        end = self._find_end(text, begin, begin)
        arguments = None if end is None else self._arguments(name, text[begin : end.start()])
        if end is None or arguments is None:
            return None
        return Parsed((ReadCall(name, arguments),), end.end())

    def _arguments(self, name: str, block: str) -> str | None:
        """The arguments as a JSON object; ``None`` where they have another reading."""
        members: dict[str, str] = {}
        position = 0
        while (found := self._tags.any_argument.match(block, position)) is not None:
            key = found["key"].strip(WHITESPACE)
            mark = found.groupdict().get("mark")
            value = self._value_as_json(name, key, found["value"], mark)
            if not key or key in members or value is None:
                return None
            members[key] = value
            position = found.end()
        if block[position:].strip(WHITESPACE):
            return None
        return f"{{{','.join(f'{compact_json(key)}:{one}' for key, one in members.items())}}}"

    def _value_as_json(self, name: str, key: str, written: str, mark: str | None) -> str | None:
        """``None`` where it is ambiguous whether a tag inside of the value is text or the format's:
        behind a broken tag."""
        tags = self._tags
        has_line = tags.has_own_lines and written.startswith("\n")
        text = written.removeprefix("\n") if tags.has_own_lines else written
        inside = text.rstrip(WHITESPACE)
        if tags.has_own_lines:
            text = text.removesuffix("\n")
        root = self._tools.schema(name)
        schema = self._tools.properties(name).get(key)
        value = _as_json(text, schema, root, mark)
        if tags.has_own_lines and not has_line and tags.value_end in inside:
            return None
        if "<" in inside and value.startswith('"') and not _may_be_text(schema, root):
            return None
        is_doubtful = not self._follows_grammar and re.search(tags.doubts, f"\n{inside}\n")
        return None if is_doubtful else value


def _may_be_text(schema: object, root: Mapping[str, Any]) -> bool:
    return any("string" in allowed_types(one) for one in alternatives(schema, root))


def _as_json(text: str, schema: object, root: Mapping[str, Any], mark: str | None) -> str:
    """Without a mark, the tool's schema decides between text and JSON."""
    if mark == IS_TEXT or (mark is None and is_schema_of_text(schema, root)):
        return compact_json(text)
    if mark is not None:
        try:
            return compact_json(read_json(text))
        except (ValueError, RecursionError):
            pass
    return as_json(text, schema, root)


OPEN = "<tool_call>"
CLOSE = "</tool_call>"
SEED_OPEN = "<seed:tool_call>"
SEED_CLOSE = "</seed:tool_call>"
FUNCTION_END = "</function>"
KEY = "<arg_key>"
KEY_END = "</arg_key>"
VALUE = "<arg_value>"
VALUE_END = "</arg_value>"


GLM_TAGS = Tags(
    function="",
    name=rf"[ \t\r]*([^{WHITESPACE}\[\]<>\"']{{1,{MAX_TAG_LENGTH}}})[ \t\r]*[<\n]",
    name_begun=TAG_TEXT,
    keeps_name_end=True,
    argument=KEY,
    key=f"(?P<key>{TAG_TEXT}){KEY_END}{SPACE}{VALUE}",
    value_end=VALUE_END,
    ends=(CLOSE,),
    closing=CLOSE,
    doubts=rf"{KEY}|{KEY_END}|{VALUE}|{VALUE_END}(?! )|</arg(?!_key>|_value>)",
)


class GlmFormat(CallFormat):
    """GLM 4.5 and later; 4.7 leaves the newlines out."""

    name = "glm"
    openings = (OPEN,)
    closings = (CLOSE,)
    markers = (OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END)

    def __init__(self, *, has_lines: bool = True) -> None:
        """``has_lines``: newlines between the tags. Both forms are read; grammars ask for the
        model's own."""
        self._newline = "\n" if has_lines else ""

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        tagged = TaggedCalls(tools, GLM_TAGS, is_wrapped=True, follows_grammar=is_held)
        return json_notation(tools), tagged.notation()

    def _rules(self, wanted: WantedCalls) -> list[str]:
        return [
            *wanted.answer_rules(OPEN, between="\n"),
            f"rest: function {wanted.marker(CLOSE)}",
            f"function: {any_of('function', len(wanted.tools))}",
            *function_rules("function", wanted, self._style(wanted.tokenizer)),
        ]

    def _style(self, tokenizer: Tokenizer) -> TagStyle:
        line = f" {literal(self._newline)}" if self._newline else ""
        key, key_end, value, value_end = (
            marker(tokenizer, text) for text in (KEY, KEY_END, VALUE, VALUE_END)
        )
        return TagStyle(
            begin=lambda name: literal(name + self._newline),
            end="",
            key=lambda name: f"{key} {literal(name)} {key_end}{line} {value}",
            any_key=f"{key} /[^<>\\n]+/ {key_end}{line} {value}",
            value_end=f"{value_end}{line}",
            text_value=(
                *head_rules("text_body", VALUE_END, tokenizer),
                f"text_value: text_body{line}",
            ),
        )


_NEWLINE = literal("\n")
_FUNCTION_LINE = literal(f"\n{FUNCTION}")


@dataclass(frozen=True, slots=True)
class CallTags:
    """The texts around one call, and around its values."""

    opens: str
    closes: str
    has_own_lines: bool

    @property
    def call(self) -> Tags:
        broken_end = rf"|\n{PARAMETER_END}" if self.has_own_lines else ""
        return Tags(
            name=f"({TAG_TEXT})>",
            name_begun=TAG_TEXT,
            needs_known_name=True,
            key=f"(?P<key>{TAG_TEXT})>",
            ends=(FUNCTION_END, self.closes),
            closing=self.closes,
            doubts=rf"{PARAMETER}[^<>\n]+>|{PARAMETER_END}(?! ){broken_end}",
            has_own_lines=self.has_own_lines,
        )

    @property
    def style(self) -> TagStyle:
        line = f" {_NEWLINE}" if self.has_own_lines else ""
        before_end = "\n" if self.has_own_lines else ""
        return TagStyle(
            begin=lambda name: literal(f"{name}>\n"),
            end=literal(FUNCTION_END),
            key=lambda key: f"{literal(f'{PARAMETER}{key}>')}{line}",
            any_key=f'{literal(PARAMETER)} /[^<>\\n]+/ ">"{line}',
            value_end=literal(f"{before_end}{PARAMETER_END}\n"),
            text_value=(
                f"text_body[lazy]: TEXT {literal(PARAMETER_END)}",
                f"text_value: text_body {_NEWLINE}",
            ),
        )


QWEN_TAGS = CallTags(OPEN, CLOSE, has_own_lines=True)
SEED_TAGS = CallTags(SEED_OPEN, SEED_CLOSE, has_own_lines=False)


class QwenCoderFormat(CallFormat):
    """The outer tags may be missing, as they are in the field, when the tool is one that was
    offered. One newline at either end of a value is the format's."""

    name = "qwen_coder"
    tags: CallTags = QWEN_TAGS

    def __init__(self) -> None:
        self.openings = (self.tags.opens, FUNCTION)
        self.closings = (self.tags.closes,)
        self.closed = (self.tags.opens,)
        self.markers = (self.tags.opens, self.tags.closes)

    def notations(self, marker: str, tools: KnownTools, *, is_held: bool) -> Sequence[Notation]:
        is_wrapped = marker == self.tags.opens
        tagged = TaggedCalls(tools, self.tags.call, is_wrapped=is_wrapped).notation()
        return (json_notation(tools), tagged) if is_wrapped else (tagged,)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        is_free = wanted.choice.mode == "auto"
        also = "bare function" if is_free else ""
        return [
            *wanted.answer_rules(self.tags.opens, between="\n", also=also),
            *(head_rules("bare", FUNCTION, wanted.tokenizer) if is_free else ()),
            f"rest: {_FUNCTION_LINE} function {_NEWLINE} {wanted.marker(self.tags.closes)}",
            f"function: {any_of('function', len(wanted.tools))}",
            *function_rules("function", wanted, self.tags.style),
        ]


class SeedFormat(QwenCoderFormat):
    name = "seed"
    tags = SEED_TAGS
