"""Golden cases of files and batches: what a client sends, the objects that answer it, result lines.

    request   ─▶ parsed         the body that makes a batch, as it is read
    lines     ─▶ lines_read     an input file, as it is read
    page      ─▶ page_parsed    the query of a list
    batch     ─▶ object         a batch's record, as clients receive it
    file      ─▶ file_object    likewise a file's
    results   ─▶ result_lines   how requests ended, as lines of a result file

Each of them may be in a case, or ``error`` in place of what a parser refuses.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec
import orjson

from inference.batches.records import BatchRecord, FileRecord
from inference.wire.anthropic import batches as anthropic_batches
from inference.wire.anthropic import errors as anthropic_errors
from inference.wire.common.batch_lines import read_lines
from inference.wire.errors import ApiError, InvalidRequestError, ModelNotFoundError
from inference.wire.openai import batches as openai_batches
from inference.wire.openai import errors as openai_errors
from tests.inference.wire.golden_cases import GoldenCase, cases_of, lines_of

DIALECTS: dict[str, ModuleType] = {
    "anthropic_batches": anthropic_batches,
    "openai_batches": openai_batches,
}
OUTPUTS = {
    "request": "parsed",
    "lines": "lines_read",
    "page": "page_parsed",
    "batch": "object",
    "file": "file_object",
    "results": "result_lines",
}
REFUSING = frozenset({"request", "lines", "page"})
REQUEST_ID = "0123456789abcdef"
BASE_URL = "http://localhost:31313"
ERRORS: dict[str, ApiError] = {
    "invalid": InvalidRequestError("'n' must be 1.", param="n"),
    "unknown_model": ModelNotFoundError("nobody"),
}


class Case(GoldenCase):
    def outputs(self) -> dict[str, Any]:
        made = {}
        for name, output in OUTPUTS.items():
            if name not in self.parts:
                continue
            try:
                made[output] = self._output(name)
            except ApiError as error:
                assert name in REFUSING, f"{self}: {name} is no client's"
                errors = anthropic_errors if self.dialect == "anthropic_batches" else openai_errors
                error_json = json.loads(errors.error_body(error, request_id=REQUEST_ID))
                made["error"] = {"status": error.status, **error_json}
        return made

    def _output(self, name: str) -> Any:
        module = DIALECTS[self.dialect]
        is_openais = module is openai_batches
        match name:
            case "request" if is_openais:
                return openai_batches.parse_batch(self.given(name))
            case "request":
                lines = list(map(json.loads, anthropic_batches.parse(self.given(name))))
                return {"lines": lines, "number": len(lines)}
            case "lines":
                lines_read = read_lines([self.text(name)], "/v1/chat/completions")
                return [[one.custom_id, json.loads(one.body)] for _, one in lines_read]
            case "page" if is_openais:
                return dataclasses.asdict(openai_batches.parse_page(self.parts[name]))
            case "page":
                return msgspec.to_builtins(anthropic_batches.parse_batch_page(self.parts[name]))
            case "batch":
                batch = msgspec.json.decode(self.given(name), type=BatchRecord)
                more = {} if is_openais else {"base_url": BASE_URL}
                return module.batch_object(batch, **more)
            case "file":
                file = msgspec.json.decode(self.given(name), type=FileRecord)
                return openai_batches.file_object(file)
        return lines_of(b"".join(_result(module, one) for one in self.parts[name]))


def _result(module: ModuleType, one: dict[str, Any]) -> bytes:
    """``ended``: with a body, with an error, or why it did not run."""
    custom_id = one["custom_id"]
    ways: dict[str, Callable[[], bytes]] = {
        "body": lambda: _succeeded(module, custom_id, one["body"]),
        "error": lambda: module.errored(custom_id, REQUEST_ID, ERRORS[one["error"]]),
        "unrun": lambda: module.unrun(custom_id, REQUEST_ID, one["unrun"]),
    }
    (way,) = one.keys() & ways.keys()
    return ways[way]()


def _succeeded(module: ModuleType, custom_id: str, body: dict[str, Any]) -> bytes:
    head, tail = module.around_answer(custom_id, REQUEST_ID)
    return bytes(head + orjson.dumps(body) + tail)


def cases() -> list[Case]:
    return cases_of(Case, DIALECTS)
