"""Golden files: one a dialect, ``tests/golden/<dialect>.json``, with its cases by name.

A case has named parts: what is given, and what the code makes of it. A part is JSON, a text is the
list of its lines, and a request that is no JSON is one string. Of a dialect of requests:

    request     what the client sent
    headers     and its headers, where they matter
    events      what happened: then also
        parsed      the request inside
        stream      the answer, streamed, where the dialect has streams
        body        the answer, whole
    or error    the refusal, where the parser refuses

Of files and batches, each of these, or ``error`` in place of what a parser refuses:

    request   ─▶ parsed         the body that makes a batch, as it is read
    lines     ─▶ lines_read     an input file, as it is read
    page      ─▶ page_parsed    the query of a list
    batch     ─▶ object         a batch's record, as clients receive it
    file      ─▶ file_object    likewise a file's
    results   ─▶ result_lines   how requests ended, as lines of a result file

``python -m tests.inference.wire.golden`` rewrites every output; read the diff before you commit.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import msgspec
import orjson

from inference.batches.records import BatchRecord, FileRecord
from inference.protocol.events import Event
from inference.protocol.generation import Request
from inference.wire import embeddings, vllm
from inference.wire.anthropic import batches as anthropic_batches
from inference.wire.anthropic import messages as anthropic_messages
from inference.wire.dialect import RequestContext
from inference.wire.error_envelopes import (
    ErrorDialect,
    anthropic_errors,
    ollama_errors,
    openai_errors,
    openai_responses_errors,
)
from inference.wire.errors import ApiError, InvalidRequestError, ModelNotFoundError
from inference.wire.ollama import chat as ollama_chat
from inference.wire.openai import batches as openai_batches
from inference.wire.openai import chat as openai_chat
from inference.wire.openai import completions as openai_completions
from inference.wire.openai.batches import read_lines
from inference.wire.responses import request as openai_responses

GOLDEN_DIR = Path(__file__).resolve().parents[2] / "golden"


@dataclass(frozen=True, slots=True)
class GoldenCase:
    dialect: str
    name: str
    parts: dict[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.dialect}/{self.name}"

    def given(self, part: str) -> bytes:
        """Returns the part as a client sends it."""
        value = self.parts[part]
        return value.encode() if isinstance(value, str) else json.dumps(value).encode()

    def text(self, part: str) -> bytes:
        return "".join(self.parts[part]).encode()

    def outputs(self) -> dict[str, Any]:
        """Makes the case's outputs, by part, with today's code."""
        raise NotImplementedError

    def check(self) -> dict[str, Any]:
        """Returns the outputs. Raises ``AssertionError`` where one differs, if only in the order
        of its fields."""
        outputs = self.outputs()
        for name, value in outputs.items():
            assert name in self.parts, f"{self} has no {name}"
            assert pretty(self.parts[name]) == pretty(value), f"{self}: {name} differs"
        return outputs


AnyCase = TypeVar("AnyCase", bound=GoldenCase)


def cases_of(kind: type[AnyCase], dialects: Iterable[str]) -> list[AnyCase]:
    read = {dialect: json.loads(_path(dialect).read_bytes()) for dialect in dialects}
    return [kind(dialect, name, parts) for dialect in read for name, parts in read[dialect].items()]


def lines_of(text: bytes) -> list[str]:
    return text.decode().splitlines(keepends=True)


def pretty(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def regenerate(cases: Iterable[GoldenCase]) -> None:
    files: dict[str, dict[str, Any]] = {}
    for case in cases:
        files.setdefault(case.dialect, {})[case.name] = case.parts | case.outputs()
    for dialect, content in files.items():
        _path(dialect).write_text(pretty(content))


def _path(dialect: str) -> Path:
    return GOLDEN_DIR / f"{dialect}.json"


Parser = Callable[[bytes, RequestContext], Any]
DIALECTS: dict[str, tuple[Parser, ErrorDialect]] = {
    "anthropic_messages": (anthropic_messages.parse, anthropic_errors),
    "ollama_chat": (ollama_chat.parse, ollama_errors),
    "ollama_embed": (embeddings.parse_ollama, ollama_errors),
    "ollama_generate": (ollama_chat.parse_generate, ollama_errors),
    "openai_chat": (openai_chat.parse, openai_errors),
    "openai_completions": (openai_completions.parse, openai_errors),
    "openai_embeddings": (embeddings.parse_openai, openai_errors),
    "openai_responses": (openai_responses.parse, openai_responses_errors),
    "rerank": (vllm.parse_rerank, openai_errors),
    "vllm_score": (vllm.parse_score, openai_errors),
}
UNSTREAMED = frozenset({"ollama_embed", "openai_embeddings", "rerank", "vllm_score"})
REQUEST_ID = "0123456789abcdef"
CREATED_UNIX_S = 1_700_000_000

decode_events = msgspec.json.Decoder(list[Event]).decode


class Case(GoldenCase):
    def outputs(self) -> dict[str, Any]:
        parse, errors = DIALECTS[self.dialect]
        try:
            context = RequestContext(headers=self.parts.get("headers", {}))
            request = parse(self.given("request"), context)
        except ApiError as error:
            return {"error": error_of(errors, error)}
        events = decode_events(self.given("events"))
        made = {"request_id": REQUEST_ID, "clock": lambda: CREATED_UNIX_S}
        outputs = {
            "parsed": msgspec.to_builtins(request, str_keys=True),
            "body": json.loads(fold(request.body_encoder(**made), events)),
        }
        if self.dialect not in UNSTREAMED:
            outputs["stream"] = lines_of(fold(request.stream_encoder(**made), events))
        return outputs

    @property
    def is_answered(self) -> bool:
        return "error" not in self.parts


def error_of(errors: ErrorDialect, error: ApiError) -> dict[str, Any]:
    body = json.loads(errors.error_body(error, request_id=REQUEST_ID))
    return {"status": error.status, **body}


def fold(encoder: Any, events: list[Event]) -> bytes:
    return b"".join(encoder.encode(event) for event in events)


def inside(parsed: Any) -> Request:
    """What crosses to the neuron."""
    names = ("embedding", "generation", "score")
    request: Request = next(getattr(parsed, name) for name in names if hasattr(parsed, name))
    return request


def cases(*dialects: str) -> list[Case]:
    return cases_of(Case, dialects or DIALECTS)


BATCH_DIALECTS: dict[str, ModuleType] = {
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
BASE_URL = "http://localhost:31313"
ERRORS: dict[str, ApiError] = {
    "invalid": InvalidRequestError("'n' must be 1.", param="n"),
    "unknown_model": ModelNotFoundError("nobody"),
}


class BatchCase(GoldenCase):
    def outputs(self) -> dict[str, Any]:
        made = {}
        for name in OUTPUTS.keys() & self.parts.keys():
            try:
                made[OUTPUTS[name]] = self._output(name)
            except ApiError as error:
                assert name in REFUSING, f"{self}: {name} is no client's"
                errors = anthropic_errors if self.dialect == "anthropic_batches" else openai_errors
                made["error"] = error_of(errors, error)
        return made

    def _output(self, name: str) -> Any:
        module = BATCH_DIALECTS[self.dialect]
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
    """``one`` ended with a body, with an error, or did not run."""
    custom_id = one["custom_id"]
    if "error" in one:
        return bytes(module.errored(custom_id, REQUEST_ID, ERRORS[one["error"]]))
    if "unrun" in one:
        return bytes(module.unrun(custom_id, REQUEST_ID, one["unrun"]))
    head, tail = module.around_answer(custom_id, REQUEST_ID)
    return bytes(head + orjson.dumps(one["body"]) + tail)


def batch_cases() -> list[BatchCase]:
    return cases_of(BatchCase, BATCH_DIALECTS)


if __name__ == "__main__":
    regenerate([*cases(), *batch_cases()])
