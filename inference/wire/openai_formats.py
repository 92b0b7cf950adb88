"""``response_format`` of OpenAI's chat dialect: what the answer's text must be. Pure."""

from __future__ import annotations

import re
from typing import Any

from inference.protocol.generation import OutputFormat
from inference.wire.errors import InvalidRequestError, MissingParameterError
from inference.wire.fields import (
    flag,
    honoured,
    json_schema,
    neutral,
    object_of,
    one_of,
    spelled,
    table,
    text,
)

_format_name = spelled(
    re.compile(r"[A-Za-z0-9_-]{1,64}"), "1 to 64 letters, digits, underscores or dashes"
)

SCHEMA_FIELDS = table(
    neutral("name", _format_name, "A label."),
    neutral("description", text(), "A note; the schema itself is enforced."),
    honoured("schema", json_schema, "A JSON schema; without one, any object."),
    neutral("strict", flag, "The schema is followed exactly either way."),
)
FORMAT_FIELDS = table(
    honoured("type", one_of("text", "json_object", "json_schema"), "Which format."),
    honoured(
        "json_schema",
        object_of(SCHEMA_FIELDS, required=("name",)),
        "Only with type json_schema, which needs it.",
    ),
)
_format = object_of(FORMAT_FIELDS, required=("type",))


def response_format(value: Any, path: str) -> OutputFormat | None:
    """``None`` for plain text."""
    given = _format(value, path)
    schema_path = f"{path}.json_schema"
    named = given.get("json_schema")
    if given["type"] == "json_schema":
        if named is None:
            raise MissingParameterError(schema_path)
        if "schema" in named:
            return OutputFormat(path=f"{schema_path}.schema", schema=named["schema"])
    elif named is not None:
        raise InvalidRequestError(
            f"'{schema_path}' is only allowed with the type json_schema.", param=schema_path
        )
    return None if given["type"] == "text" else OutputFormat(path=path)
