"""Bodies of the REST API: JSON as clients of the models' API may send it, and no deeper than any
field here is."""

from __future__ import annotations

from typing import Any

import orjson
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

MAX_DEPTH = 32


class PlainJsonParser(JSONParser):
    """Python's own parser accepts NaN and half a character, and raises for deep nesting."""

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        """Raises ``ParseError``."""
        try:
            value = orjson.loads(stream.read())
        except orjson.JSONDecodeError as error:
            raise ParseError(f"The body is not valid JSON: {error.msg}.") from None
        level = [value]
        for _ in range(MAX_DEPTH):
            level = [child for parent in level for child in _children(parent)]
            if not level:
                return value
        raise ParseError(f"The body is nested deeper than {MAX_DEPTH} levels.")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
