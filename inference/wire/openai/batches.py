"""OpenAI's files and batches: requests, the objects in answers, results as lines.

A batch's input, in every dialect, is lines of this form:

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {…}}

Source: https://platform.openai.com/docs/api-reference/batch and …/files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import orjson

from inference.batches.records import BatchRecord, FileRecord
from inference.wire import fields as f
from inference.wire.dialect import page_limit, page_of
from inference.wire.error_envelopes import openai_errors
from inference.wire.errors import (
    ApiError,
    InvalidJsonError,
    InvalidRequestError,
    MissingParameterError,
    UnsupportedParameterError,
)

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
PURPOSE = "batch"
DEFAULT_LIMIT, MAX_LIMIT = 20, 100
MAX_FILES_LIMIT = 10_000
EXPIRY_ANCHOR, EXPIRY_SECONDS = "expires_after[anchor]", "expires_after[seconds]"
MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 2_592_000

BATCH_FIELDS = f.table(
    f.required("input_file_id", f.text(64, min_chars=1), "A file of requests, one in each line."),
    f.required("endpoint", f.one_of(*ENDPOINTS), f"One of {', '.join(ENDPOINTS)}."),
    f.required(
        "completion_window",
        f.only("24h", reason="a batch has 24h"),
        "24h: requests that have not run by then are reported as expired.",
    ),
    f.honoured("metadata", f.json_object, "Returned with the batch."),
    f.refused("output_expires_after", "results stay until they are deleted"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    limit: int
    after: str | None
    purpose: str | None = None


def parse_batch(body: bytes) -> dict[str, Any]:
    """Raises ``ApiError``."""
    return f.read_body(body, BATCH_FIELDS)


def parse_expiry(fields: Mapping[str, str]) -> timedelta | None:
    """Raises ``ApiError``."""
    given = {name: fields[name] for name in (EXPIRY_ANCHOR, EXPIRY_SECONDS) if name in fields}
    if not given:
        return None
    for name in (EXPIRY_ANCHOR, EXPIRY_SECONDS):
        if name not in given:
            raise MissingParameterError(name)
    if given[EXPIRY_ANCHOR] != "created_at":
        message = f"'{EXPIRY_ANCHOR}' must be created_at."
        raise InvalidRequestError(message, param=EXPIRY_ANCHOR)
    word = given[EXPIRY_SECONDS]
    is_number = word.isascii() and word.isdigit() and len(word) <= 8
    if not is_number or not MIN_EXPIRY_S <= int(word) <= MAX_EXPIRY_S:
        message = f"'{EXPIRY_SECONDS}' must be from {MIN_EXPIRY_S} to {MAX_EXPIRY_S}."
        raise InvalidRequestError(message, param=EXPIRY_SECONDS)
    return timedelta(seconds=int(word))


def parse_page(query: Mapping[str, str], max_limit: int = MAX_LIMIT) -> Page:
    for name in query.keys() - {"limit", "after", "purpose", "order"}:
        raise UnsupportedParameterError(name, "not a parameter of this list")
    if query.get("order", "desc") != "desc":
        raise UnsupportedParameterError("order", "the newest comes first: desc")
    default = DEFAULT_LIMIT if max_limit == MAX_LIMIT else max_limit
    limit = page_limit(query, default, max_limit)
    if not query.get("purpose", "").isprintable():
        raise InvalidRequestError("'purpose' must be a word.", param="purpose")
    return Page(limit=limit, after=query.get("after"), purpose=query.get("purpose"))


def file_object(file: FileRecord) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": _unix_s(file.created_at),
        "expires_at": _unix_s(file.expires_at),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_object(batch: BatchRecord) -> dict[str, Any]:
    ended = None if batch.ended_at is None else batch.status
    has_output = ended is not None and batch.num_completed > 0
    has_errors = ended is not None and batch.num_failed + batch.num_expired > 0

    def when(status: str) -> int | None:
        return _unix_s(batch.ended_at) if status == ended else None

    errors = None
    if batch.failure:
        one = {"code": "invalid_value", "message": batch.failure, "param": None, "line": None}
        errors = {"object": "list", "data": [one]}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": errors,
        "input_file_id": batch.input_file,
        "completion_window": "24h",
        "status": batch.status,
        "output_file_id": batch.output_file if has_output else None,
        "error_file_id": batch.error_file if has_errors else None,
        "created_at": _unix_s(batch.created_at),
        "in_progress_at": _unix_s(batch.started_at),
        "expires_at": _unix_s(batch.expires_at),
        "finalizing_at": when("completed"),
        **{f"{status}_at": when(status) for status in ("completed", "failed", "expired")},
        "cancelling_at": _unix_s(batch.cancelled_at),
        "cancelled_at": when("cancelled"),
        "request_counts": {
            "total": batch.num_total,
            "completed": batch.num_completed,
            "failed": batch.num_failed + batch.num_expired,
        },
        "metadata": orjson.loads(batch.metadata_json) or None,
    }


def list_body(objects: Sequence[dict[str, Any]], limit: int) -> bytes:
    return orjson.dumps({"object": "list", **page_of(objects, limit)})


def deleted_body(file_id: str) -> bytes:
    return orjson.dumps({"id": file_id, "object": "file", "deleted": True})


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


LINE_FIELDS = f.table(
    f.required(
        "custom_id",
        f.text(MAX_CUSTOM_ID_CHARS, min_chars=1),
        "Returned with the result; no two are the same.",
    ),
    f.required("method", f.one_of("POST"), "POST."),
    f.required("url", f.text(64), "The batch's endpoint."),
    f.required("body", f.json_object, "What would be sent to the endpoint; never streamed."),
)


def read_lines(lines: Iterable[bytes], endpoint: str) -> Iterator[tuple[int, BatchLine]]:
    """Yields each request with its line's offset. ``lines`` include their ends. Raises
    ``InvalidRequestError``; one of the whole file comes last."""
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


def around_answer(custom_id: str, request_id: str) -> tuple[bytes, bytes]:
    response = _response(200, request_id, ANSWER)
    head, _, tail = _line(custom_id, request_id, response, None).partition(MARK)
    return head, tail


def errored(custom_id: str, request_id: str, error: ApiError) -> bytes:
    body = openai_errors.error_object(error)
    return _line(custom_id, request_id, _response(error.status, request_id, body), None)


def unrun(custom_id: str, request_id: str, why: Unrun) -> bytes:
    if why == "cancelled":
        return b""
    message = "This request could not be executed before the completion window expired."
    return _line(custom_id, request_id, None, {"code": "batch_expired", "message": message})


def count_of(result: dict[str, Any]) -> str:
    if result["response"] is None:
        return "num_expired"
    return "num_completed" if result["response"]["status_code"] == 200 else "num_failed"


def _response(status: int, request_id: str, body: Any) -> dict[str, Any]:
    return {"status_code": status, "request_id": request_id, "body": body}


def _line(
    custom_id: str,
    request_id: str,
    response: dict[str, Any] | None,
    error: dict[str, str] | None,
) -> bytes:
    line = {
        "id": f"batch_req_{request_id}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _unix_s(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
