"""Parts that every dialect's probes share: one bounded request, and its texts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fleet.errors import UpstreamUnavailableError
from fleet.upstreams.entry import UpstreamEntry
from fleet.upstreams.http import Answer, exchange

if TYPE_CHECKING:
    import httpx2

TIMEOUT_S = 15.0
"""One probe takes as long at most."""
MAX_BYTES = 1024 * 1024
MAX_TOKENS = 64
RED_PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAJ0lEQVR42u3NsQkAAA"
    "jAsP7/tF7hIASyp6lTCQQCgUAgEAgEgi/BAjLD/C5w/SM9AAAAAElFTkSuQmCC"
)
"""Base64 of a red square."""
NUMBERS = (3, 7, 11)
SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer", "enum": list(NUMBERS)}},
    "required": ["number"],
    "additionalProperties": False,
}
"""Small models write numbers without end where any is allowed."""
TOOL_NAME, TOOL_DESCRIPTION = "report_number", "Reports a number."
HELLO, REPORT = "Say hello.", "Report the number 7."
REPORT_JSON, COLOUR = "Report the number 7 as JSON.", "Which colour is this?"
STREAM, TOOLS = "stream", "tools"
SCHEMAS, IMAGES, COUNTING = "schema", "images", "counting"
WITH_USAGE, WITHOUT_USAGE = "with usage", "without usage: tokens will be estimated"


class Asking:
    """One model of an upstream, within the time that is left for all probes."""

    def __init__(
        self, client: httpx2.Client, entry: UpstreamEntry, model: str, until_s: float
    ) -> None:
        self._client = client
        self._until_s = until_s
        self.url = entry.url
        self.model = model

    @property
    def left_s(self) -> float:
        return self._until_s - time.monotonic()

    def post(
        self,
        url: str,
        body: dict[str, Any],
        *,
        max_bytes: int = MAX_BYTES,
        timeout_s: float = TIMEOUT_S,
    ) -> Answer:
        """Raises ``UpstreamUnavailableError``, also where the status is no success."""
        return self._asked(url, timeout_s, max_bytes, json=body)

    def upload(self, url: str, fields: dict[str, str], file: tuple[str, bytes, str]) -> Answer:
        """Sends a form with ``file``, its name, content and type. Raises as ``post``."""
        return self._asked(url, TIMEOUT_S, MAX_BYTES, data=fields, files={"file": file})

    def _asked(self, url: str, timeout_s: float, max_bytes: int, **sent: Any) -> Answer:
        timeout_s = min(timeout_s, max(0.1, self.left_s))
        answer = exchange(
            self._client, "POST", url, timeout_s=timeout_s, max_bytes=max_bytes, **sent
        )
        if not answer.is_success:
            raise UpstreamUnavailableError(f"it answers with status {answer.status}")
        return answer


Step = Callable[[Asking], str]
"""Returns a detail. Raises ``UpstreamUnavailableError`` where it does not work."""


def no_answer() -> UpstreamUnavailableError:
    return UpstreamUnavailableError("its answer is not understood")


def no_call() -> UpstreamUnavailableError:
    return UpstreamUnavailableError("it calls no tool where one is required")


def no_stream() -> UpstreamUnavailableError:
    return UpstreamUnavailableError("it does not stream")


def check_stream(answer: Answer, mark: bytes, usage_mark: bytes) -> str:
    """Raises ``UpstreamUnavailableError``."""
    if mark not in answer.body:
        raise no_stream()
    return WITH_USAGE if usage_mark in answer.body else WITHOUT_USAGE


def check_schema(text: Any) -> str:
    """Raises ``UpstreamUnavailableError``."""
    try:
        is_kept = json.loads(text or "") in [{"number": number} for number in NUMBERS]
    except (ValueError, TypeError):
        is_kept = False
    if not is_kept:
        raise UpstreamUnavailableError("its answer does not keep to the schema")
    return ""
