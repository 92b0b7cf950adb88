"""Grammars of formats that write calls in a section, each with its name in a head.

<section> <call> head {arguments} tail </call> <call> … </call> </section>
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inference.protocol.generation import ToolChoice, ToolDefinition
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.grammar_rules import (
    answer_rules,
    any_of,
    arguments_schema,
    callable_tools,
    json_rule,
    literal,
    marker,
)

Pair = tuple[str, str]
"""An opening and a closing marker."""


def section_grammar(
    tools: Sequence[ToolDefinition],
    choice: ToolChoice,
    *,
    parallel: bool,
    tokenizer: Tokenizer,
    section: Pair,
    call: Pair,
    head: Callable[[ToolDefinition], str],
    tail: str = "",
    between: str = "",
) -> str | None:
    """``head`` and ``tail`` are rules around one call's arguments, ``between`` the format's
    characters between two calls."""
    called = callable_tools(tools, choice, parallel=parallel)
    if not called:
        return None
    # What one section holds is all that the answer calls.
    many = parallel and choice.mode != "required"
    opens, ends = (marker(tokenizer, text) for text in call)
    more = f" ({literal(between) + ' ' if between else ''}one)*" if parallel else ""
    rules = [
        *answer_rules(section[0], choice, parallel=many, tokenizer=tokenizer, between=""),
        f"rest: one{more} {marker(tokenizer, section[1])}",
        f"one: {opens} ({any_of('one', len(called))}) {ends}",
    ]
    for index, tool in enumerate(called):
        rules.append(f"one_{index}: {head(tool)} arguments_{index} {tail}".rstrip())
        rules.append(json_rule(f"arguments_{index}", arguments_schema(tool, choice)))
    return "\n".join(rules)
