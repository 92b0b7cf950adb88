"""One call that names its tool in a head before its arguments, which are a JSON object.

    f[ARGS]{"a": 1}      f[CALL_ID]abc123def[ARGS]{}      f{"a": 1}        Mistral
    functions.f:0<|tool_call_argument_begin|>{"a": 1}                      Kimi

The head is the format's: ``name_of`` finds the name in it. Up to three closing braces too many are
left out.
"""

from __future__ import annotations

from collections.abc import Callable

from inference.text.tool_calls.headed_call import NOT_IN_HEADS, HeadedCall, plain_name
from inference.text.tool_calls.json_calls import MAX_EXTRA_BRACES
from inference.text.tool_calls.json_scanner import WHITESPACE, JsonScanner
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.part_list import PartList

ARGUMENTS = "[ARGS]"
CALL_ID = "[CALL_ID]"


class NamedCall(HeadedCall):
    """``stream``: where the arguments go as they are generated."""

    def __init__(
        self,
        *,
        name_of: Callable[[str], str | None],
        tools: KnownTools,
        stream: PartList | None = None,
        not_in_head: str = NOT_IN_HEADS,
        opening: str | None = None,
        tail: str = "}",
    ) -> None:
        """``tail``: characters behind the arguments that are left out; the rest as in
        ``HeadedCall``."""
        super().__init__(name_of=name_of, tools=tools, opening=opening, not_in_head=not_in_head)
        self._stream = stream
        self._tail_characters = tail
        self._num_tail_characters = 0
        self._scanner = JsonScanner()
        self._written: list[str] = []

    def _begin_arguments(self) -> JsonScanner:
        if self._stream is not None:
            self.has_streamed = True
            self._stream.start_call(self._name)
        return self._scanner

    def _arguments_grew(self) -> None:
        if self._stream is not None:
            self._stream.add_arguments(self._scanner.take())
        else:
            self._written.append(self._scanner.take())

    def _end_arguments(self, position: int) -> int:
        self._read = self._read_after
        if self._stream is not None:
            return position
        try:
            self._add_call("".join(self._written))
        except ValueError:
            return self._break(position)
        if self._scanner.has_trailing_comma and not self._tools.may_be_all(*self.calls[-1]):
            self.calls.pop()
            return self._break(position)
        return position

    def _read_after(self, text: str, position: int) -> int:
        """Closing braces too many, and what else the format has there."""
        most = len(self._tail_characters) * MAX_EXTRA_BRACES
        if text[position] in self._tail_characters and self._num_tail_characters < most:
            self._num_tail_characters += 1
            return position + 1
        return self._end(position)


def mistral_name(head: str, tools: KnownTools) -> str | None:
    """``None`` when what stands before the arguments is no name. Without a marker behind it, only a
    tool's is one."""
    head = head.rstrip(WHITESPACE)
    name = head.removesuffix(ARGUMENTS).partition(CALL_ID)[0].strip(WHITESPACE)
    return plain_name(name) if head.endswith(ARGUMENTS) or name in tools else None
