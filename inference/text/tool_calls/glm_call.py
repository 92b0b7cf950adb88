"""One call of the GLM format, behind its first tag.

    f ─▶ name     <arg_key>a</arg_key> <arg_value>1</arg_value> ─▶ "a":1     … </tool_call> ─▶ whole

Values are what stands between their tags, to the character.
"""

from __future__ import annotations

import re

from inference.text.tool_calls.headed_call import plain_name
from inference.text.tool_calls.json_scanner import WHITESPACE
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.tagged_call import CLOSE, PARAMETER, TaggedCall

KEY = "<arg_key>"
KEY_END = "</arg_key>"
VALUE = "<arg_value>"
VALUE_END = "</arg_value>"
NO_DOUBTS = re.compile("(?!)")


class GlmCall(TaggedCall):
    AFTER_VALUE = (KEY, CLOSE)
    VALUE_END = VALUE_END
    DOUBTS = re.compile(
        rf"{KEY}|{KEY_END}|{VALUE}|{VALUE_END}(?! )|</arg(?!_key>|_value>)",
    )
    HAS_OWN_LINES = False

    def __init__(self, tools: KnownTools, *, follows_grammar: bool) -> None:
        """``follows_grammar``: a value that names the format's tags is whole all the same."""
        super().__init__(tools, is_wrapped=True)
        if follows_grammar:
            self.DOUBTS = NO_DOUBTS
        self._read = self._read_name

    def _go_to(self, tag: str, position: int) -> int:
        if tag == VALUE:
            self._begin_value()
        elif tag == KEY_END:
            self._expect((VALUE,))
        else:
            return super()._go_to(PARAMETER if tag == KEY else tag, position)
        return position

    def _read_name(self, text: str, position: int) -> int:
        """It ends with its line or where the next tag begins."""
        if text[position] not in "\n<":
            return self._read_tag_text(text, position)
        name = plain_name(self._tag_text.strip(WHITESPACE))
        if name is None:
            return self._break(position)
        self._name = name
        self._tag_text = ""
        self._begin_arguments()
        return position

    def _read_key(self, text: str, position: int) -> int:
        if text[position] != "<":
            return self._read_tag_text(text, position)
        key = self._take_tag_text()
        if key is None:
            return self._break(position)
        self._key = key
        self._expect((KEY_END,))
        return position
