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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.argument_values import allowed_types, alternatives, as_json
from inference.text.tool_calls.argument_values import is_text as is_schema_of_text
from inference.text.tool_calls.call_parser import MarkedFormat, Opening
from inference.text.tool_calls.call_reader import CallReader, Expected, KnownTools, ReadCall
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
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.json_text import WHITESPACE, ReadState, compact_json, read_json

FUNCTION = "<function="
PARAMETER = "<parameter="
PARAMETER_END = "</parameter>"
SPACE = f"[{WHITESPACE}]*"
IS_TEXT = ' string="true"'
"""The mark of a text in formats that mark values; JSON has another."""


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def any_argument(self) -> str:
        """A value ends at the tag behind which the call continues or ends."""
        follows = rf"(?={SPACE}(?:{re.escape(self.argument)}|\Z))"
        head = f"{SPACE}{re.escape(self.argument)}{self.key}"
        return f"{head}(?P<value>(?s:.*?)){re.escape(self.value_end)}{follows}"


class TaggedCall(CallReader):
    """One call whose arguments stand between tags. It is a call once its end was read."""

    def __init__(
        self, tools: KnownTools, tags: Tags, *, is_wrapped: bool, follows_grammar: bool = False
    ) -> None:
        """``is_wrapped``: the call stands in tags of its own or a section's, else behind
        ``tags.function``. ``follows_grammar``: a value that names the format's tags is whole all
        the same."""
        super().__init__()
        self._tools = tools
        self._tags = tags
        self._is_wrapped = is_wrapped
        self._follows_grammar = follows_grammar
        self._name = ""
        self._block = ""
        """The call from its first argument on."""
        self._any_end = re.compile("|".join(map(re.escape, tags.ends)))
        self._longest_end = max(map(len, tags.ends))
        self._expected = Expected((tags.function,))
        is_named = is_wrapped and bool(tags.function)
        self._read = self._read_expected if is_named else self._read_name

    def close(self) -> None:
        self._break()

    def _read_expected(self, text: str, position: int) -> int:
        position = self._expected.feed(text, position)
        if self._expected.state is ReadState.BROKEN:
            return self._break(position)
        if self._expected.state is ReadState.RUNNING:
            return position
        tag = self._expected.found
        if tag in self._tags.ends:
            return self._end_call(tag, position)
        if tag == self._tags.function:
            self._read = self._read_name
        else:
            self._block, self._read = tag, self._read_block
        return position

    def _read_name(self, text: str, position: int) -> int:
        name = self._name + text[position]
        if (found := re.fullmatch(self._tags.name, name)) is None:
            self._name = name
            is_begun = re.fullmatch(self._tags.name_begun, name)
            return position + 1 if is_begun else self._break(position)
        self._name = found.group(1).strip(WHITESPACE)
        is_known = self._name in self._tools or not self._tags.needs_known_name
        if not self._name or not (is_known or self._is_wrapped):
            return self._break(position)
        self.has_begun = True
        self._expected = Expected((self._tags.argument, *self._tags.ends))
        self._read = self._read_expected
        return position if self._tags.keeps_name_end else position + 1

    def _read_block(self, text: str, position: int) -> int:
        """Waits for an end behind a value."""
        num_before = len(self._block)
        self._block += text[position:]
        # A tag may have begun in the text before.
        start = max(0, num_before - self._longest_end)
        for end in self._any_end.finditer(self._block, start):
            if self._block[: end.start()].rstrip(WHITESPACE).endswith(self._tags.value_end):
                self._block = self._block[: end.start()]
                return self._end_call(end.group(), position + end.end() - num_before)
        return len(text)

    def _end_call(self, tag: str, position: int) -> int:
        arguments = self._parse(self._block)
        if arguments is None:
            return self._break(position)
        self.is_closed = tag == self._tags.closing
        self.calls.append(ReadCall(self._name, arguments))
        return self._end(position)

    def _parse(self, block: str) -> str | None:
        """The arguments as a JSON object; ``None`` where they have another reading."""
        members: dict[str, str] = {}
        position = 0
        argument = re.compile(self._tags.any_argument)
        while (found := argument.match(block, position)) is not None:
            key = found["key"].strip(WHITESPACE)
            value = self._value_as_json(key, found["value"], found.groupdict().get("mark"))
            if not key or key in members or value is None:
                return None
            members[key] = value
            position = found.end()
        if block[position:].strip(WHITESPACE):
            return None
        return f"{{{','.join(f'{compact_json(key)}:{one}' for key, one in members.items())}}}"

    def _value_as_json(self, key: str, written: str, mark: str | None) -> str | None:
        """``None`` where it is ambiguous whether a tag inside of the value is text or the format's:
        behind a broken tag."""
        tags = self._tags
        has_line = tags.has_own_lines and written.startswith("\n")
        text = written.removeprefix("\n") if tags.has_own_lines else written
        inside = text.rstrip(WHITESPACE)
        if tags.has_own_lines:
            text = text.removesuffix("\n")
        root = self._tools.schema(self._name)
        schema = self._tools.properties(self._name).get(key)
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


class GlmFormat(MarkedFormat):
    """GLM 4.5 and later; 4.7 leaves the newlines out."""

    name = "glm"
    openings = (OPEN,)
    closings = (CLOSE,)
    markers = (OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END)

    def __init__(self, *, has_lines: bool = True) -> None:
        """``has_lines``: newlines between the tags. Both forms are read; grammars ask for the
        model's own."""
        self._newline = "\n" if has_lines else ""

    def reader(self, at: Opening) -> CallReader:
        if at.character in "[{":
            return JsonCalls(at.tools)
        is_held = at.stream is not None
        return TaggedCall(at.tools, GLM_TAGS, is_wrapped=True, follows_grammar=is_held)

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


class QwenCoderFormat(MarkedFormat):
    """The outer tags may be missing, as they are in the field, when the tool is one that was
    offered. One newline at either end of a value is the format's."""

    name = "qwen_coder"
    tags: CallTags = QWEN_TAGS

    def __init__(self) -> None:
        self.openings = (self.tags.opens, FUNCTION)
        self.closings = (self.tags.closes,)
        self.closed = (self.tags.opens,)
        self.markers = (self.tags.opens, self.tags.closes)

    def reader(self, at: Opening) -> CallReader:
        is_wrapped = at.marker == self.tags.opens
        if is_wrapped and at.character in "[{":
            return JsonCalls(at.tools)
        return TaggedCall(at.tools, self.tags.call, is_wrapped=is_wrapped)

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
