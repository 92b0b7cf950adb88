"""One request of a batch in any dialect, and reading its input line by line. Pure.

{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {…}}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from inference.wire.common import fields as f
from inference.wire.errors import ApiError, InvalidJsonError, InvalidRequestError

MAX_REQUESTS = 100_000
MAX_CUSTOM_ID_CHARS = 512
Unrun = Literal["cancelled", "expired"]
COUNTS = ("num_total", "num_completed", "num_failed", "num_expired", "num_cancelled")


LINE_ENDS = b"\r\n"
MARK = b'"\x00"'
"""Replaces an answer's body in a line of results: no JSON string contains these bytes."""
ANSWER = orjson.Fragment(MARK)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    custom_id: str
    body: bytes


def custom_id(value: Any, path: str) -> str:
    return f.text(MAX_CUSTOM_ID_CHARS, min_chars=1)(value, path)


LINE_FIELDS = f.table(
    f.required("custom_id", custom_id, "Returned with the result; no two are the same."),
    f.required("method", f.one_of("POST"), "POST."),
    f.required("url", f.text(64), "The batch's endpoint."),
    f.required("body", f.json_object, "What would be sent to the endpoint; never streamed."),
)


def read_lines(lines: Iterable[bytes], endpoint: str) -> Iterator[tuple[int, BatchLine]]:
    """Yields each request and the offset of its line, without empty lines. ``lines`` include their
    ends, as a binary file gives them. Raises ``InvalidRequestError`` that names the line; one of
    the whole file comes last."""
    seen: set[str] = set()
    offset = 0
    ends = (line for piece in lines for line in piece.splitlines(keepends=True))
    for number, line in enumerate(ends, start=1):
        start, offset = offset, offset + len(line)
        if not line.strip():
            continue
        try:
            read = read_line(line.rstrip(LINE_ENDS), endpoint)
        except ApiError as error:
            raise InvalidRequestError(f"Line {number}: {error.message}") from None
        if read.custom_id in seen:
            raise InvalidRequestError(f"Line {number}: {read.custom_id!r} is there twice.")
        seen.add(read.custom_id)
        yield start, read
    if not seen:
        raise InvalidRequestError("The file holds no requests.")
    if len(seen) > MAX_REQUESTS:
        raise InvalidRequestError(
            f"A batch may have {MAX_REQUESTS:,} requests; it has {len(seen):,}."
        )


def written_line(custom_id: str, endpoint: str, body: dict[str, Any]) -> bytes:
    line = {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def read_line(line: bytes, endpoint: str) -> BatchLine:
    """Raises ``ApiError``."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidJsonError(f"not valid JSON: {error.msg}") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("not a JSON object")
    read = f.read_fields(value, LINE_FIELDS)
    if read["url"] != endpoint:
        raise InvalidRequestError(f"'url' is {read['url']!r} and the batch's endpoint {endpoint!r}")
    return BatchLine(custom_id=read["custom_id"], body=orjson.dumps(read["body"]))
