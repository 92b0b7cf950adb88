"""One call of DeepSeek's DSML, behind its section's tag or its own.

    name="f"> ─▶ name     <｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter> ─▶ "a":1
    … </｜DSML｜invoke> ─▶ whole

A value is the exact text between its tags, or JSON where its tag is so marked.
"""  # noqa: RUF002 - DeepSeek's own characters

from __future__ import annotations

import re

from inference.text.tool_calls.free_text import Expected
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.tagged_call import (
    FUNCTION,
    TaggedCall,
    fits_tag,
)
from inference.text.tool_calls.tagged_call import PARAMETER as TAGGED_PARAMETER

DSML = "｜DSML｜"  # noqa: RUF001
INVOKE = f'<{DSML}invoke name="'
INVOKE_END = f"</{DSML}invoke>"
PARAMETER = f'<{DSML}parameter name="'
PARAMETER_END = f"</{DSML}parameter>"
IS_TEXT = 'string="true"'
IS_JSON = 'string="false"'
MAX_ATTRIBUTES_LENGTH = 100


def fits_quotes(name: str) -> bool:
    """Whether a name or key comes through its tag as it is."""
    return fits_tag(name) and '"' not in name


class DsmlCall(TaggedCall):
    """Reads one call, behind the section's tag if the call ``is_wrapped``, else behind its own."""

    INVOKE = INVOKE
    PARAMETER = PARAMETER
    AFTER_VALUE = (PARAMETER, INVOKE_END)
    VALUE_END = PARAMETER_END
    DOUBTS = re.compile(f'(?<!</){DSML}|{DSML}(?!parameter>)| string="|{PARAMETER_END}(?! )')
    HAS_OWN_LINES = False
    TAG_RUN = re.compile(r'[^<>"\n]+')

    def __init__(self, tools: KnownTools, *, is_wrapped: bool) -> None:
        super().__init__(tools, is_wrapped=is_wrapped)
        if is_wrapped:
            self._expected = Expected((self.INVOKE,))

    def _go_to(self, tag: str, position: int) -> int:
        known = {self.INVOKE: FUNCTION, self.PARAMETER: TAGGED_PARAMETER}.get(tag, tag)
        return super()._go_to(known, position)

    def _read_name(self, text: str, position: int) -> int:
        if text[position] != '"':
            return self._read_tag_text(text, position)
        name = self._take_tag_text()
        if name is None:
            return self._break(position)
        self._name = name
        self._read = self._read_name_end
        return position + 1

    def _read_name_end(self, text: str, position: int) -> int:
        if text[position] != ">":
            return self._break(position)
        self._begin_arguments()
        return position + 1

    def _read_key(self, text: str, position: int) -> int:
        if text[position] != '"':
            return self._read_tag_text(text, position)
        key = self._take_tag_text()
        if key is None:
            return self._break(position)
        self._key = key
        self._read = self._read_attributes
        return position + 1

    def _read_attributes(self, text: str, position: int) -> int:
        """Read a tag's attributes. Without a mark, the tool's schema decides between text and JSON.
        White space that the format does not write may be the rest of a broken value."""
        character = text[position]
        if character == ">":
            mark, self._tag_text = self._tag_text, ""
            if mark not in (f" {IS_TEXT}", f" {IS_JSON}", ""):
                return self._break(position)
            self._begin_value(is_text=mark == f" {IS_TEXT}" if mark else None)
            return position + 1
        if character in "<\n" or len(self._tag_text) > MAX_ATTRIBUTES_LENGTH:
            return self._break(position)
        self._tag_text += character
        return position + 1
