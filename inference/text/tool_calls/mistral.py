"""Mistral: calls behind ``[TOOL_CALLS]``, in the two ways of older and newer models.

    [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]
    [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]abc123def[ARGS]{}

The model's own call ids are left out: the API gives its own. Without ``[ARGS]`` the name ends where
the arguments begin.
"""

from __future__ import annotations

from functools import partial

from inference.text.tool_calls.call_format import MarkedFormat
from inference.text.tool_calls.call_parser import PartList
from inference.text.tool_calls.call_reader import CallReader, KnownTools
from inference.text.tool_calls.grammar_rules import (
    CallKeys,
    WantedCalls,
    any_of,
    json_call_rules,
    literal,
    marker_token_id,
)
from inference.text.tool_calls.headed_call import NamedCall, plain_name
from inference.text.tool_calls.json_calls import JsonCalls
from inference.text.tool_calls.json_text import WHITESPACE

CALLS = "[TOOL_CALLS]"
ARGUMENTS = "[ARGS]"
CALL_ID = "[CALL_ID]"


class MistralFormat(MarkedFormat):
    name = "mistral"
    openings = (CALLS,)
    markers = (CALLS, ARGUMENTS, CALL_ID)

    def __init__(self, *, writes_lists: bool) -> None:
        """``writes_lists``: the older form. Both are read; grammars ask for the model's own."""
        self._writes_lists = writes_lists

    def _reader(
        self, tools: KnownTools, opening: str, character: str, stream: PartList | None
    ) -> CallReader:
        if character in "[{":
            return JsonCalls(tools, stream=stream)
        return NamedCall(name_of=partial(_name, tools), tools=tools, stream=stream)

    def _rules(self, wanted: WantedCalls) -> list[str]:
        start = wanted.answer_rules(CALLS, is_section=self._writes_lists)
        if not self._writes_lists:
            return [*start, *_named_call_rules(wanted)]
        rest = f'rest: "[" object{wanted.more("object", ", ")} "]"'
        return [*start, rest, *json_call_rules(wanted, CallKeys())]


def _name(tools: KnownTools, head: str) -> str | None:
    """``None`` when what stands before the arguments is no name. Without a marker behind it, only a
    tool's is one."""
    head = head.rstrip(WHITESPACE)
    name = head.removesuffix(ARGUMENTS).partition(CALL_ID)[0].strip(WHITESPACE)
    return plain_name(name) if head.endswith(ARGUMENTS) or name in tools else None


def _named_call_rules(wanted: WantedCalls) -> list[str]:
    rules = [f"rest: {any_of('rest', len(wanted.tools))}"]
    call_id = ""
    if marker_token_id(wanted.tokenizer, CALL_ID) is not None:
        call_id = f"({wanted.marker(CALL_ID)} /[a-zA-Z0-9]{{9}}/)? "
    for index, tool in enumerate(wanted.tools):
        head = f"{literal(tool.name)} {call_id}{wanted.marker(ARGUMENTS)}"
        rules += [f"rest_{index}: {head} arguments_{index}", wanted.arguments_rule(index)]
    return rules
