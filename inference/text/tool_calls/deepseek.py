"""DeepSeek: calls between special tokens, in the two ways of V3 and R1 and of V3.1.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f
    ```json
    {"a": 1}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>…

Both are read; grammars ask for the model's own. The outer markers may be missing.
"""  # noqa: RUF002 - DeepSeek's own characters

from __future__ import annotations

from collections.abc import Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.answers.parts import ToolCallParser
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import MarkedCallParser, PartList
from inference.text.tool_calls.call_reader import KnownTools
from inference.text.tool_calls.grammar_rules import (
    literal,
    marker,
    section_grammar,
    special_marker_ids,
)
from inference.text.tool_calls.headed_call import NamedCall, plain_name
from inference.text.tool_calls.json_scanner import WHITESPACE

CALLS_BEGIN = "<｜tool▁calls▁begin｜>"  # noqa: RUF001
CALLS_END = "<｜tool▁calls▁end｜>"  # noqa: RUF001
CALL_BEGIN = "<｜tool▁call▁begin｜>"  # noqa: RUF001
CALL_END = "<｜tool▁call▁end｜>"  # noqa: RUF001
SEPARATOR = "<｜tool▁sep｜>"  # noqa: RUF001
FENCE = "```json"
TYPE = "function"


class DeepSeekFormat:
    name = "deepseek"

    def __init__(self, *, writes_fences: bool) -> None:
        """``writes_fences``: the older form, with a type and the arguments in a code block."""
        self._writes_fences = writes_fences

    def shown_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        markers = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)
        return special_marker_ids(tokenizer, markers)

    def parser(self, tools: Sequence[ToolDefinition]) -> ToolCallParser:
        known = KnownTools(tools)

        def begin(opening: str, character: str, stream: PartList | None) -> NamedCall:
            return NamedCall(
                name_of=_name,
                tools=known,
                stream=stream,
                not_in_head="{}",
                opening=CALL_BEGIN if opening == CALLS_BEGIN else None,
                tail="}`\n",
            )

        return MarkedCallParser(
            [CALLS_BEGIN, CALL_BEGIN], begin, closings=[CALL_END, CALLS_END], inner=[CALL_END]
        )

    def grammar(
        self,
        tools: Sequence[ToolDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        tokenizer: Tokenizer,
    ) -> str | None:
        separator = marker(tokenizer, SEPARATOR)

        def head(tool: ToolDefinition) -> str:
            if not self._writes_fences:
                return f"{literal(tool.name)} {separator}"
            fenced = literal(f"{tool.name}\n{FENCE}\n")
            return f"{literal(TYPE)} {separator} {fenced}"

        return section_grammar(
            tools,
            choice,
            parallel=parallel,
            tokenizer=tokenizer,
            section=(CALLS_BEGIN, CALLS_END),
            call=(CALL_BEGIN, CALL_END),
            head=head,
            tail=literal("\n```") if self._writes_fences else "",
            between="\n" if self._writes_fences else "",
        )


def _name(head: str) -> str | None:
    first, separator, second = head.partition(SEPARATOR)
    name = second.strip(WHITESPACE).removesuffix("json").rstrip("`").strip(WHITESPACE)
    if name and first.strip(WHITESPACE) != TYPE:
        return None
    return plain_name(name or first.strip(WHITESPACE)) if separator else None
