"""One call whose arguments stand between tags, as plain text.

    <function=f> ─▶ name     <parameter=a>1</parameter> ─▶ "a":1     … </function> ─▶ whole

It is a call once its end was read; before that it can still be text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.text.tool_calls.argument_values import allowed_types, alternatives, as_json
from inference.text.tool_calls.argument_values import is_text as is_schema_of_text
from inference.text.tool_calls.call_reader import CallReader, Expected, KnownTools, ReadCall
from inference.text.tool_calls.json_text import WHITESPACE, ReadState, compact_json, read_json

FUNCTION = "<function="
PARAMETER = "<parameter="
PARAMETER_END = "</parameter>"
MAX_TAG_LENGTH = 300
"""Most characters of a name or key; a longer one is text."""

SPACE = f"[{WHITESPACE}]*"
TAG_TEXT = rf"[^<>\n]{{1,{MAX_TAG_LENGTH}}}"
IS_TEXT = ' string="true"'
"""The mark of a text in formats that mark values; JSON has another."""


def fits_tag(name: str) -> bool:
    """Whether a name or key comes through its tag as it is."""
    return re.fullmatch(TAG_TEXT, name) is not None and name == name.strip(WHITESPACE)


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
