"""One call of DeepSeek's DSML, behind its section's tag or its own.

    name="f"> ─▶ name     <｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter> ─▶ "a":1
    … </｜DSML｜invoke> ─▶ whole

As in the Qwen-Coder format it starts with its first argument or its end, whichever comes. A value
is what stands between its tags, to the character: text, or JSON where its tag says so.
"""  # noqa: RUF002 - DeepSeek's own characters

from __future__ import annotations

import re

from inference.text.tool_calls.free_text import Expected
from inference.text.tool_calls.json_scanner import WHITESPACE
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.part_list import PartList
from inference.text.tool_calls.tagged_call import (
    FUNCTION,
    MAX_TAG_LENGTH,
    TaggedCall,
    fits_tag,
)
from inference.text.tool_calls.tagged_call import PARAMETER as TAGGED_PARAMETER

DSML = "｜DSML｜"  # noqa: RUF001
INVOKE = f'<{DSML}invoke name="'
INVOKE_END = f"</{DSML}invoke>"
PARAMETER = f'<{DSML}parameter name="'
PARAMETER_END = f"</{DSML}parameter>"
IS_JSON = 'string="false"'
MAX_ATTRIBUTES_LENGTH = 100


def fits_quotes(name: str) -> bool:
    """Whether a name or key comes through its tag as it is."""
    return fits_tag(name) and '"' not in name


class DsmlCall(TaggedCall):
    """``lead`` was read before, up to the section's tag if the call ``is_wrapped``, else its own;
    it is text again when no call follows."""

    AFTER_VALUE = (PARAMETER, INVOKE_END)
    VALUE_END = PARAMETER_END
    HAS_OWN_LINES = False
    TAG_RUN = re.compile(r'[^<>"\n]+')

    def __init__(self, tools: KnownTools, parts: PartList, *, lead: str, is_wrapped: bool) -> None:
        super().__init__(tools, parts, lead=lead, is_wrapped=is_wrapped)
        self._key = ""
        if is_wrapped:
            self._expected = Expected((INVOKE,))

    def _go_to(self, tag: str) -> None:
        super()._go_to({INVOKE: FUNCTION, PARAMETER: TAGGED_PARAMETER}.get(tag, tag))

    def _read_name(self, text: str, position: int) -> int:
        if text[position] != '"':
            return self._read_tag_text(text, position)
        self._name = self._tag_text.strip(WHITESPACE)
        if not self._name or len(self._tag_text) > MAX_TAG_LENGTH:
            return self._refuse(position)
        self._read = self._read_name_end
        return self._hold_quote(position)

    def _read_name_end(self, text: str, position: int) -> int:
        if text[position] != ">":
            return self._refuse(position)
        self._held += ">"
        self._expect(self.AFTER_VALUE)
        return position + 1

    def _read_key(self, text: str, position: int) -> int:
        if text[position] != '"':
            return self._read_tag_text(text, position)
        self._key = self._tag_text.strip(WHITESPACE)
        if not self._key or len(self._tag_text) > MAX_TAG_LENGTH:
            return self._refuse(position)
        self._read = self._read_attributes
        return self._hold_quote(position)

    def _hold_quote(self, position: int) -> int:
        self._held += f'{self._tag_text}"'
        self._tag_text = ""
        return position + 1

    def _read_attributes(self, text: str, position: int) -> int:
        """A tag that says nothing leaves it to the tool's schema."""
        character = text[position]
        if character == ">":
            said = self._tag_text.strip(WHITESPACE)
            self._tag_text = ""
            self._begin_value(self._key, is_text=said != IS_JSON if said else None)
            return position + 1
        if character in "<\n" or len(self._tag_text) > MAX_ATTRIBUTES_LENGTH:
            return self._refuse(position)
        self._tag_text += character
        return position + 1
