"""One call of the Qwen-Coder format, behind its first tag.

    <function=f> ─▶ name     <parameter=a>1</parameter> ─▶ "a":1     … </function> ─▶ whole

It is a call once its end was read; before that it can still be text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from inference.text.tool_calls.argument_values import allowed_types, alternatives, as_json
from inference.text.tool_calls.argument_values import is_text as is_schema_of_text
from inference.text.tool_calls.call_reader import CallReader, KnownTools, ReadCall
from inference.text.tool_calls.free_text import Expected, FreeText
from inference.text.tool_calls.json_text import WHITESPACE, ReadState, compact_json, read_json

PARAMETER_END = "</parameter>"


class TaggedValue:
    """The value between two tags, as JSON. It may contain its closing tag as text. Behind a broken
    tag it is ambiguous whether that tag is text or the format's; such a value ``is_doubtful``."""

    def __init__(
        self,
        *,
        schema: object,
        root: Mapping[str, Any],
        closing: str,
        has_own_lines: bool,
        doubts: re.Pattern[str],
        is_text: bool | None = None,
    ) -> None:
        """``has_own_lines``: one newline at either end is not part of it. ``doubts``: tags inside
        of it that may be the format's. ``is_text``: whether the call marks it as text or as JSON;
        ``None``: unmarked, the schema decides."""
        self._schema = schema
        self._root = root
        self._closing = closing
        self._doubts = doubts
        self._is_json = is_text is False
        self._is_text = is_schema_of_text(schema, root) if is_text is None else is_text
        self._may_be_text = any(
            "string" in allowed_types(one) for one in alternatives(schema, root)
        )
        self._text = FreeText((closing,))
        self._whole: list[str] = []
        self._is_first = has_own_lines
        self._has_own_lines = has_own_lines
        self._begins_with_line = False

    @property
    def is_at_end(self) -> bool:
        """Whether the closing tag was read last."""
        return self._text.found is not None

    def feed(self, text: str, start: int) -> int:
        """Returns where it stopped: at the end, or after a closing tag."""
        self._begins_with_line = self._begins_with_line or (self._is_first and text[start] == "\n")
        skipped = 1 if self._is_first and text[start] == "\n" else 0
        self._is_first = False
        position = self._text.feed(text, start + skipped)
        self._whole.append(self._text.take())
        return position

    def resume(self, read: str) -> None:
        """Treat the closing tag and the text ``read`` after it as part of the value."""
        self._text.reject()
        self._text.feed(read, 0)
        self._whole.append(self._text.take())

    @property
    def is_doubtful(self) -> bool:
        text = "".join(self._whole)
        is_on_one_line = self._has_own_lines and not self._begins_with_line
        if is_on_one_line and self._closing in text:
            return True
        if "<" in text and not self._may_be_text and self.finish().startswith('"'):
            return True
        return self._doubts.search(f"\n{text}\n") is not None

    def finish(self) -> str:
        """The value is whole."""
        space = self._text.space
        text = "".join(self._whole)
        text += space.removesuffix("\n") if self._has_own_lines else space
        if self._is_text:
            return compact_json(text)
        if self._is_json:
            try:
                return compact_json(read_json(text))
            except (ValueError, RecursionError):
                pass
        return as_json(text, self._schema, self._root)


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
