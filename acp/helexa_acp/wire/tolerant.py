"""Events of a stream that some servers get wrong: what cannot be read is skipped, and logged."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from helexa_acp.wire.base import WireEvent
from helexa_acp.wire.json_object import JsonObject

END = "[DONE]"
SHOWN = 200
"""How many characters of a bad event the log shows."""
log = logging.getLogger(__name__)


def is_readable(data: str) -> bool:
    """Whether an event's data is a JSON object, or the end."""
    if data.startswith(END) or not data.strip():
        return True
    try:
        is_object = isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        log.warning("skipped a malformed event: %.*s", SHOWN, data)
    return is_object


def fed(feed: Callable[[JsonObject], list[WireEvent]], event: object) -> list[WireEvent]:
    """The wire events of one event; none where its fields are of other kinds than the API has."""
    if not isinstance(event, dict):
        log.warning("skipped an event that is no object")
        return []
    try:
        return feed(JsonObject(event))
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        shown: Any = json.dumps(event)[:SHOWN]
        log.warning("skipped a malformed event (%s): %s", error, shown)
        return []
