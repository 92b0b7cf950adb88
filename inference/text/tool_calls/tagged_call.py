"""One call of the Qwen-Coder format, behind its first tag.

    <function=f> ─▶ name     <parameter=a>1</parameter> ─▶ "a":1     … </function> ─▶ whole

It starts with its first argument or its end, whichever comes; before that it can still be text. An
argument that the answer's end cuts off is left out, but for text arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from inference.text.tool_calls.call_reader import CallReader
from inference.text.tool_calls.free_text import Expected
from inference.text.tool_calls.json_scanner import WHITESPACE, ReadState, compact_json
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.part_list import PartList
from inference.text.tool_calls.tagged_value import PARAMETER_END, TaggedValue

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
FUNCTION = "<function="
FUNCTION_END = "</function>"
PARAMETER = "<parameter="
MAX_TAG_LENGTH = 300
"""The longest that a name or key may be; what is longer is text."""

_TAG_RUN = re.compile(r"[^<>\n]+")


def fits_tag(name: str) -> bool:
    """Whether a name or key comes through its tag as it is."""
    is_plain = _TAG_RUN.fullmatch(name) is not None and name == name.strip(WHITESPACE)
    return is_plain and len(name) <= MAX_TAG_LENGTH


class TaggedCall(CallReader):
    """``lead`` was read before, up to ``<tool_call>`` if the call ``is_wrapped``, else
    ``<function=``; it is text again when no call follows."""

    AFTER_VALUE: tuple[str, ...] = (PARAMETER, FUNCTION_END, CLOSE)
    """What may come behind a value, and behind the name."""
    VALUE_END = PARAMETER_END
    HAS_OWN_LINES = True
    """Whether one newline at either end of a value is the format's."""
    TAG_RUN = _TAG_RUN
    """What a name or key may be made of."""

    def __init__(self, tools: KnownTools, parts: PartList, *, lead: str, is_wrapped: bool) -> None:
        super().__init__(parts)
        self.has_started = False
        self._tools = tools
        self._held = lead
        """As it came, while it can still be text."""
        self._is_wrapped = is_wrapped
        self._name = ""
        self._tag_text = ""
        """What was read of a name or key."""
        self._has_arguments = False
        self._value: TaggedValue | None = None
        self._expected = Expected((FUNCTION,))
        self._read = self._read_expected if is_wrapped else self._read_name

    def close(self) -> None:
        """The answer has ended."""
        if self._value is not None and self._value.is_at_end:
            self._value.finish()
        elif self._value is not None:
            self._value.close()
        if self.has_started:
            self._parts.add_arguments("}")
            self.is_done = True
        else:
            if self._read == self._read_expected:
                self._held += self._expected.read
            self._refuse()

    def _read_expected(self, text: str, start: int) -> int:
        position = self._expected.feed(text, start)
        match self._expected.state:
            case ReadState.COMPLETE:
                self._go_to(self._expected.found)
            case ReadState.BROKEN if self._value is not None:
                self._value.go_on(self._expected.read)
                self._read = self._read_value
            case ReadState.BROKEN:
                self._held += self._expected.read
                self._refuse()
        return position

    def _go_to(self, tag: str) -> None:
        if self._value is not None:
            self._value.finish()
            self._value = None
        self._held += self._expected.read
        self._tag_text = ""
        if tag == FUNCTION:
            self._read = self._read_name
        elif tag == PARAMETER:
            self._read = self._read_key
        else:
            self._start()
            self._parts.add_arguments("}")
            self.num_calls = 1
            self.is_done = True

    def _read_name(self, text: str, position: int) -> int:
        if text[position] != ">":
            return self._read_tag_text(text, position)
        self._name = self._tag_text.strip(WHITESPACE)
        is_offered = self._is_wrapped or self._name in self._tools
        if not self._name or not is_offered or len(self._tag_text) > MAX_TAG_LENGTH:
            return self._refuse(position)
        self._held += f"{self._tag_text}>"
        self._tag_text = ""
        self._expect(self.AFTER_VALUE)
        return position + 1

    def _read_key(self, text: str, position: int) -> int:
        if text[position] != ">":
            return self._read_tag_text(text, position)
        if len(self._tag_text) > MAX_TAG_LENGTH:
            return self._refuse(position)
        key = self._tag_text.strip(WHITESPACE)
        self._tag_text = ""
        self._begin_value(key)
        return position + 1

    def _begin_value(self, key: str, *, is_text: bool | None = None) -> None:
        """``is_text``: what the call itself says of the value, where its format does."""
        self._start()
        self._held = ""
        self._value = TaggedValue(
            self._parts,
            member=f"{',' if self._has_arguments else ''}{compact_json(key)}:",
            schema=self._tools.properties(self._name).get(key),
            root=self._tools.schema(self._name),
            is_text=is_text,
            closing=self.VALUE_END,
            has_own_lines=self.HAS_OWN_LINES,
        )
        self._has_arguments = True
        self._read = self._read_value

    def _read_tag_text(self, text: str, position: int) -> int:
        run = self.TAG_RUN.match(text, position)
        if run is None or len(self._tag_text) > MAX_TAG_LENGTH:
            return self._refuse(position)
        self._tag_text += run.group()
        return run.end()

    def _read_value(self, text: str, position: int) -> int:
        assert self._value is not None
        position = self._value.feed(text, position)
        if self._value.is_at_end:
            self._expect(self.AFTER_VALUE)
        return position

    def _expect(self, tags: Sequence[str]) -> None:
        self._expected = Expected(tags)
        self._read = self._read_expected

    def _start(self) -> None:
        if not self.has_started:
            self.has_started = True
            self._held = ""
            self._parts.start_call(self._name)
            self._parts.add_arguments("{")

    def _refuse(self, position: int = 0) -> int:
        """What cannot be read is text: all of the call, or the tag after which it broke."""
        if self.has_started:
            self._parts.add_arguments("}")
        self._parts.add_text(self._held + self._tag_text)
        self.is_done = True
        return position
