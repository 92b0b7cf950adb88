"""One call of the Qwen-Coder format, behind its first tag.

    <function=f> ─▶ name     <parameter=a>1</parameter> ─▶ "a":1     … </function> ─▶ whole

It is a call once its end was read; before that it can still be text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from inference.text.tool_calls.call_reader import CallReader, ReadCall
from inference.text.tool_calls.free_text import Expected
from inference.text.tool_calls.json_scanner import WHITESPACE, ReadState, compact_json
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.tagged_value import PARAMETER_END, TaggedValue

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
SEED_OPEN = "<seed:tool_call>"
SEED_CLOSE = "</seed:tool_call>"
FUNCTION = "<function="
FUNCTION_END = "</function>"
PARAMETER = "<parameter="
MAX_TAG_LENGTH = 300
"""Most characters of a name or key; a longer one is text."""

_TAG_RUN = re.compile(r"[^<>\n]+")


def fits_tag(name: str) -> bool:
    """Whether a name or key comes through its tag as it is."""
    is_plain = _TAG_RUN.fullmatch(name) is not None and name == name.strip(WHITESPACE)
    return is_plain and len(name) <= MAX_TAG_LENGTH


class TaggedCall(CallReader):
    """Reads one call, behind ``<tool_call>`` if the call ``is_wrapped``, else behind
    ``<function=``."""

    AFTER_VALUE: tuple[str, ...] = (PARAMETER, FUNCTION_END, CLOSE)
    """What may come behind a value, and behind the name."""
    VALUE_END = PARAMETER_END
    DOUBTS = re.compile(rf"{PARAMETER}[^<>\n]+>|\n{PARAMETER_END}|{PARAMETER_END}(?! )")
    """What inside of a value may be the format's: the next argument, or a closing tag in its
    place."""
    HAS_OWN_LINES = True
    """Whether one newline at either end of a value is the format's."""
    TAG_RUN = _TAG_RUN
    """What a name or key may be made of."""

    def __init__(self, tools: KnownTools, *, is_wrapped: bool) -> None:
        super().__init__()
        self._tools = tools
        self._is_wrapped = is_wrapped
        self._name = ""
        self._tag_text = ""
        """The part of a name or key that was read so far."""
        self._arguments: dict[str, str] = {}
        """JSON text by key."""
        self._key = ""
        self._value: TaggedValue | None = None
        self._expected = Expected((FUNCTION,))
        self._read = self._read_expected if is_wrapped else self._read_name

    def close(self) -> None:
        self._break()

    def _read_expected(self, text: str, start: int) -> int:
        position = self._expected.feed(text, start)
        match self._expected.state:
            case ReadState.COMPLETE:
                return self._go_to(self._expected.found, position)
            case ReadState.BROKEN if self._value is not None:
                self._value.resume(self._expected.read)
                self._read = self._read_value
            case ReadState.BROKEN:
                return self._break(position)
        return position

    def _go_to(self, tag: str, position: int) -> int:
        if self._value is not None:
            if self._value.is_doubtful or self._key in self._arguments:
                return self._break(position)
            self._arguments[self._key] = self._value.finish()
            self._value = None
        self._tag_text = ""
        if tag == FUNCTION:
            self._read = self._read_name
        elif tag == PARAMETER:
            self._read = self._read_key
        else:
            return self._end_call(tag, position)
        return position

    def _end_call(self, tag: str, position: int) -> int:
        self.is_closed = tag in (CLOSE, SEED_CLOSE)
        members = (f"{compact_json(key)}:{value}" for key, value in self._arguments.items())
        self.calls.append(ReadCall(self._name, f"{{{','.join(members)}}}"))
        return self._end(position)

    def _read_name(self, text: str, position: int) -> int:
        if text[position] != ">":
            return self._read_tag_text(text, position)
        name = self._take_tag_text()
        if name is None or not (self._is_wrapped or name in self._tools):
            return self._break(position)
        self._name = name
        self._begin_arguments()
        return position + 1

    def _begin_arguments(self) -> None:
        self.has_begun = True
        self._expect(self.AFTER_VALUE)

    def _read_key(self, text: str, position: int) -> int:
        if text[position] != ">":
            return self._read_tag_text(text, position)
        key = self._take_tag_text()
        if key is None:
            return self._break(position)
        self._key = key
        self._begin_value()
        return position + 1

    def _take_tag_text(self) -> str | None:
        """The name or key; ``None`` for other text."""
        text, self._tag_text = self._tag_text, ""
        return None if len(text) > MAX_TAG_LENGTH else text.strip(WHITESPACE) or None

    def _begin_value(self, *, is_text: bool | None = None) -> None:
        """``is_text``: the call's own mark of the value, in formats that have one."""
        self._value = TaggedValue(
            schema=self._tools.properties(self._name).get(self._key),
            root=self._tools.schema(self._name),
            is_text=is_text,
            closing=self.VALUE_END,
            doubts=self.DOUBTS,
            has_own_lines=self.HAS_OWN_LINES,
        )
        self._read = self._read_value

    def _read_tag_text(self, text: str, position: int) -> int:
        run = self.TAG_RUN.match(text, position)
        if run is None or len(self._tag_text) > MAX_TAG_LENGTH:
            return self._break(position)
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


class SeedCall(TaggedCall):
    """Seed-OSS's: other tags around it, and values to the character."""

    AFTER_VALUE = (PARAMETER, FUNCTION_END, SEED_CLOSE)
    DOUBTS = re.compile(rf"{PARAMETER}[^<>\n]+>|{PARAMETER_END}(?! )")
    HAS_OWN_LINES = False
