"""Mistral: calls behind ``[TOOL_CALLS]``, in the two ways of older and newer models.

    [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]
    [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]abc123def[ARGS]{}

The model's own call ids are left out: the API gives its own. Without ``[ARGS]`` the name ends where
the arguments begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.parts import Part, ToolCallParser
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.free_text import FreeText
from inference.text.tool_calls.grammar_rules import (
    answer_rules,
    arguments_schema,
    callable_tools,
    json_call_rules,
    json_rule,
    literal,
    marker,
)
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.json_scanner import WHITESPACE
from inference.text.tool_calls.known_tools import KnownTools
from inference.text.tool_calls.markers import marker_token_id, special_marker_ids
from inference.text.tool_calls.named_call import ARGUMENTS, CALL_ID, NamedCall
from inference.text.tool_calls.part_list import PartList

CALLS = "[TOOL_CALLS]"


class MistralFormat:
    name = "mistral"

    def __init__(self, *, writes_lists: bool) -> None:
        """``writes_lists``: the older form. Both are read; grammars ask for the model's own."""
        self._writes_lists = writes_lists

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return special_marker_ids(tokenizer, (CALLS, ARGUMENTS, CALL_ID))

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        return MistralParser(tools)

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        tokenizer: Tokenizer,
    ) -> str | None:
        called = callable_tools(tools, choice, parallel=parallel)
        if not called:
            return None
        if self._writes_lists:
            more = f" ({literal(', ')} object)*" if parallel else ""
            rest = [
                f'rest: "[" object{more} "]"',
                *json_call_rules(called, choice, arguments_key="arguments"),
            ]
        else:
            rest = _named_call_rules(called, choice, tokenizer)
        many = parallel and not (self._writes_lists and choice.mode == "required")
        start = answer_rules(CALLS, choice, parallel=many, tokenizer=tokenizer, between="")
        return "\n".join([*start, *rest])


def _named_call_rules(
    tools: Sequence[ToolDefinition], choice: ToolChoice, tokenizer: Tokenizer
) -> list[str]:
    rules = [f"rest: {' | '.join(f'rest_{index}' for index in range(len(tools)))}"]
    call_id = ""
    if marker_token_id(tokenizer, CALL_ID) is not None:
        call_id = f"({marker(tokenizer, CALL_ID)} /[a-zA-Z0-9]{{9}}/)? "
    for index, tool in enumerate(tools):
        name, arguments = literal(tool.name), f"arguments_{index}"
        rules.append(f"rest_{index}: {name} {call_id}{marker(tokenizer, ARGUMENTS)} {arguments}")
        rules.append(json_rule(arguments, arguments_schema(tool, choice)))
    return rules


class MistralParser:
    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._tools = KnownTools(tools)
        self._parts = PartList()
        self._text = FreeText((CALLS,))
        self._calls: JsonCalls | NamedCall | None = None
        self._lead: list[str] = []
        """The marker and the whitespace around it."""
        self._read: Callable[[str, int], int] = self._read_text

    def feed(self, text: str) -> list[Part]:
        position = 0
        while position < len(text):
            position = self._read(text, position)
        return self._parts.take()

    def flush(self) -> list[Part]:
        if self._calls is not None:
            self._calls.close()
        else:
            self._parts.add_text("".join(self._lead) + self._text.flush())
        return self._parts.take()

    def _read_text(self, text: str, start: int) -> int:
        position = self._text.feed(text, start)
        self._parts.add_text(self._text.take())
        if self._text.found is not None:
            self._lead = [self._text.space, CALLS]
            self._read = self._read_first
        return position

    def _read_first(self, text: str, position: int) -> int:
        """The first character behind the marker tells which of the two ways it is."""
        character = text[position]
        if character in WHITESPACE:
            self._lead.append(character)
            return position + 1
        lead = "".join(self._lead)
        if character in "[{":
            self._calls = JsonCalls(self._tools, self._parts, lead=lead)
        else:
            self._calls = NamedCall(self._parts, lead=lead)
        self._lead.clear()
        self._read = self._read_calls
        return position

    def _read_calls(self, text: str, start: int) -> int:
        assert self._calls is not None
        position = self._calls.feed(text, start)
        if self._calls.is_done:
            self._text = FreeText((CALLS,), follows_call=self._calls.num_calls > 0)
            self._calls = None
            self._read = self._read_text
        return position
