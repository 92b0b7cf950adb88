"""Grammars as llguidance takes them, and whether it can follow one.

A grammar is a list of parts, each lark text or a JSON schema; the first is where it starts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from inference.recent_results import RecentResults
from inference.text.errors import SchemaError
from inference.text.schema_places import Schema

OUR_OPTIONS = "x-guidance"
OPTIONS = {"whitespace_pattern": r"( |\n {0,32})?"}
"""White space between JSON tokens: a space, or a new line with its indent. Bounded, because small
models else write white space until they are cut."""
MAX_PROBLEM_BYTES = 256 * 1024
TOO_DEEP = "the schema is nested too deeply"

LIMITS = LLParserLimits(verbose_errors=False)
"""Errors without the parser's state, which is of no use to a client."""


def json_part(schema: Schema | None) -> dict[str, Any]:
    """JSON that ``schema`` allows, any object for ``None``."""
    if schema is None:
        schema = {"type": "object"}
    elif isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    return {"json_schema": {**schema, OUR_OPTIONS: OPTIONS}}


def lenient_part(schema: dict[str, Any]) -> dict[str, Any]:
    """An object of which only the keywords that llguidance knows are enforced."""
    return {"json_schema": {**schema, "type": "object", OUR_OPTIONS: {"lenient": True}}}


def calls_part(lark: str) -> dict[str, Any]:
    return {"lark_grammar": lark}


def grammar_text(parts: Sequence[dict[str, Any]]) -> str:
    """Raises ``SchemaError`` for a schema that is nested too deeply to be written."""
    try:
        return json.dumps({"grammars": list(parts)})
    except RecursionError:
        raise SchemaError((), TOO_DEEP) from None


def find_problem(grammar: str) -> str | None:
    """Why it cannot; ``None`` when it can. Without a tokenizer: token ids are not checked."""
    is_broken, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    return one_line(messages[0]) if is_broken else None


def problem_of(grammar: str) -> str | None:
    """The same, kept for the next request that has the same grammar."""
    return _problems.get(grammar, find_problem)


_problems: RecentResults[str | None] = RecentResults(
    MAX_PROBLEM_BYTES, lambda _grammar, problem: len(problem or "")
)


def one_line(message: str) -> str:
    """Regular expressions are complained of in several, the last of which says why."""
    first, *others = [line.strip() for line in message.splitlines() if line.strip()]
    return f"{first} {others[-1].removeprefix('error: ')}" if others else first
