"""Golden cases of files and batches: what a client sends, the objects that answer it, result lines.

    tests/golden/<openai_batches | anthropic_batches>/<case>/
        request.json     ─▶ parsed.json     the body that makes a batch, as it is read
        lines.jsonl      ─▶ lines.json      an input file, as it is read
        page.json        ─▶ page.parsed.json   the query of a list
        batch.json       ─▶ object.json     a batch's record, as clients receive it
        file.json        ─▶ file.object.json   likewise a file's
        results.json     ─▶ results.jsonl   how requests ended, as lines of a result file

Each of them may be in a case, or ``error.json`` in place of what a parser refuses.
``python -m tests.inference.wire.golden_batches`` rewrites every output; read the diff before you
commit.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
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
from tests.inference.wire.golden_cases import GoldenCase, cases_of, pretty, regenerate

DIALECTS: dict[str, ModuleType] = {
    "anthropic_batches": anthropic_batches,
    "openai_batches": openai_batches,
}
OUTPUTS = {
    "request.json": "parsed.json",
    "lines.jsonl": "lines.json",
    "page.json": "page.parsed.json",
    "batch.json": "object.json",
    "file.json": "file.object.json",
    "results.json": "results.jsonl",
}
REFUSING = frozenset({"request.json", "lines.jsonl", "page.json"})
REQUEST_ID = "0123456789abcdef"
BASE_URL = "http://localhost:31313"
ERRORS: dict[str, ApiError] = {
    "invalid": InvalidRequestError("'n' must be 1.", param="n"),
    "unknown_model": ModelNotFoundError("nobody"),
}


@dataclass(frozen=True, slots=True)
class Case(GoldenCase):
    def outputs(self) -> dict[str, bytes]:
        made = {}
        for name, output in OUTPUTS.items():
            path = self.path / name
            if not path.exists():
                continue
            try:
                made[output] = self._output(name, path.read_bytes())
            except ApiError as error:
                assert name in REFUSING, f"{self}: {name} is no client's"
                errors = anthropic_errors if self.dialect == "anthropic_batches" else openai_errors
                error_json = json.loads(errors.error_body(error, request_id=REQUEST_ID))
                made["error.json"] = pretty({"status": error.status, **error_json})
        return made

    def _output(self, name: str, content: bytes) -> bytes:
        module = DIALECTS[self.dialect]
        is_openais = module is openai_batches
        match name:
            case "request.json" if is_openais:
                return pretty(openai_batches.parse_batch(content))
            case "request.json":
                lines = list(map(json.loads, anthropic_batches.parse(content)))
                return pretty({"lines": lines, "number": len(lines)})
            case "lines.jsonl":
                lines_read = read_lines([content], "/v1/chat/completions")
                return pretty([[one.custom_id, json.loads(one.body)] for _, one in lines_read])
            case "page.json" if is_openais:
                return pretty(dataclasses.asdict(openai_batches.parse_page(json.loads(content))))
            case "page.json":
                page = anthropic_batches.parse_batch_page(json.loads(content))
                return pretty(msgspec.to_builtins(page))
            case "batch.json":
                batch = msgspec.json.decode(content, type=BatchRecord)
                more = {} if is_openais else {"base_url": BASE_URL}
                return pretty(module.batch_object(batch, **more))
            case "file.json":
                file = msgspec.json.decode(content, type=FileRecord)
                return pretty(openai_batches.file_object(file))
        return b"".join(_result(module, one) for one in json.loads(content))


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


if __name__ == "__main__":
    regenerate(cases())
