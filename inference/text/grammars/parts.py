"""Grammars as llguidance takes them: a list of parts, each lark text or a JSON schema; the first is
where it starts. Knows no llguidance: a process that only writes grammars cannot compile one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from inference.text.errors import SchemaError
from inference.text.schemas.places import Schema

OUR_OPTIONS = "x-guidance"
OPTIONS = {"whitespace_pattern": r"( |\n {0,32})?"}
"""White space between JSON tokens: a space, or a new line with its indent. Bounded, because small
models else write white space until they are cut."""
TOO_DEEP = "the schema is nested too deeply"


def json_part(schema: Schema | None) -> dict[str, Any]:
    """JSON that ``schema`` allows, any object for ``None``."""
    if schema is None:
        schema = {"type": "object"}
    elif isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    return {"json_schema": {**schema, OUR_OPTIONS: OPTIONS}}


def calls_part(lark: str) -> dict[str, Any]:
    return {"lark_grammar": lark}


def grammar_text(parts: Sequence[dict[str, Any]]) -> str:
    """Raises ``SchemaError`` for a schema that is nested too deeply to be written."""
    try:
        return json.dumps({"grammars": list(parts)})
    except RecursionError:
        raise SchemaError((), TOO_DEEP) from None
