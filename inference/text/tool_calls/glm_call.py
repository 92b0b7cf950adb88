"""One call of the GLM format, behind its first tag.

    f ─▶ name     <arg_key>a</arg_key> <arg_value>1</arg_value> ─▶ "a":1     … </tool_call> ─▶ whole

As in the Qwen-Coder format it starts with its first argument or its end, whichever comes. Values
are what stands between their tags, to the character.
"""

from __future__ import annotations

from inference.text.tool_calls.json_scanner import WHITESPACE
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.named_call import plain_name
from inference.text.tool_calls.part_list import PartList
from inference.text.tool_calls.tagged_call import CLOSE, PARAMETER, TaggedCall

KEY = "<arg_key>"
KEY_END = "</arg_key>"
VALUE = "<arg_value>"
VALUE_END = "</arg_value>"


class GlmCall(TaggedCall):
    """``lead`` was read before and is text again when no call follows."""

    AFTER_VALUE = (KEY, CLOSE)
    VALUE_END = VALUE_END
    HAS_OWN_LINES = False

    def __init__(self, tools: KnownTools, parts: PartList, *, lead: str) -> None:
        super().__init__(tools, parts, lead=lead, is_wrapped=True)
        self._key = ""
        self._read = self._read_name

    def _go_to(self, tag: str) -> None:
        if tag == VALUE:
            self._begin_value(self._key)
        elif tag == KEY_END:
            self._held += self._expected.read
            self._expect((VALUE,))
        else:
            super()._go_to(PARAMETER if tag == KEY else tag)

    def _read_name(self, text: str, position: int) -> int:
        """It ends with its line or where the next tag begins."""
        if text[position] not in "\n<":
            return self._read_tag_text(text, position)
        name = plain_name(self._tag_text.strip(WHITESPACE))
        if name is None:
            return self._refuse(position)
        self._name = name
        self._held += self._tag_text
        self._tag_text = ""
        self._expect(self.AFTER_VALUE)
        return position

    def _read_key(self, text: str, position: int) -> int:
        if text[position] != "<":
            return self._read_tag_text(text, position)
        self._key = self._tag_text.strip(WHITESPACE)
        if not self._key:
            return self._refuse(position)
        self._held += self._tag_text
        self._tag_text = ""
        self._expect((KEY_END,))
        return position
