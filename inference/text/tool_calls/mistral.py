"""Mistral: calls behind ``[TOOL_CALLS]``, in the two ways of older and newer models.

    [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]
    [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]abc123def[ARGS]{}

The model's own call ids are left out: the API gives its own. Without ``[ARGS]`` the name ends where
the arguments begin.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import MarkedCallParser, PartList
from inference.text.tool_calls.call_reader import CallReader, KnownTools
from inference.text.tool_calls.grammar_rules import (
    CallKeys,
    answer_rules,
    arguments_schema,
    callable_tools,
    json_call_rules,
    json_rule,
    literal,
    marker,
    marker_token_id,
    special_marker_ids,
)
from inference.text.tool_calls.headed_call import ARGUMENTS, CALL_ID, NamedCall, mistral_name
from inference.text.tool_calls.json_calls import JsonCalls

CALLS = "[TOOL_CALLS]"


class MistralFormat:
    name = "mistral"

    def __init__(self, *, writes_lists: bool) -> None:
        """``writes_lists``: the older form. Both are read; grammars ask for the model's own."""
        self._writes_lists = writes_lists

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        return special_marker_ids(tokenizer, (CALLS, ARGUMENTS, CALL_ID))

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        known = KnownTools(tools)

        def name_of(head: str) -> str | None:
            return mistral_name(head, known)

        def begin(opening: str, character: str, stream: PartList | None) -> CallReader:
            if character in "[{":
                return JsonCalls(known, stream=stream)
            return NamedCall(name_of=name_of, tools=known, stream=stream)

        return MarkedCallParser([CALLS], begin)

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
                *json_call_rules(called, choice, CallKeys()),
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
