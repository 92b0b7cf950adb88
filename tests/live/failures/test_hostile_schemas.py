"""Schemas and templates that crash or hang what reads them, sent to a whole server: each is 400 at
its place, or left out of a format that need not be strict, and the neuron keeps running."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.live.catalogue import add_model, with_template
from tests.live.serving import MODEL, WAIT_TIMEOUT_S, Serve

LEAST = -(2**63)
SCHEMAS: dict[str, dict[str, Any]] = {
    "const": {"const": LEAST},
    "enum": {"type": "integer", "enum": [1, LEAST]},
    "minimum": {"type": "integer", "minimum": "😀" * 50},
    "least minimum": {"type": "integer", "minimum": LEAST},
    "beyond 64 bits": {"type": "integer", "maximum": 10**20},
    "far below 64 bits": {"const": -(10**30)},
    "reference": {"$ref": ["😀" * 50]},
}
USER = [{"role": "user", "content": "Hello"}]
LOOPS = (
    "{% for a in range(90000) %}{% for b in range(90000) %}{% for c in range(90000) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)


def _object(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


def _as_json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    named = {"name": "x", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


LOOSE = "/api/chat"
REQUESTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "/v1/chat/completions": lambda schema: {"messages": USER} | _as_json_schema(schema),
    "/v1/completions": lambda schema: {
        "prompt": "Hello",
        "structured_outputs": {"json": schema},
    },
    "/v1/messages/count_tokens": lambda schema: {
        "messages": USER,
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
    },
    LOOSE: lambda schema: {
        "messages": USER,
        "format": schema,
        "stream": False,
        "options": {"num_predict": 4},
    },
}


def _post(helexa: Serve, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(
        f"{helexa.url}{path}",
        content=json.dumps({"model": MODEL} | body),
        headers={"Content-Type": "application/json"},
        timeout=WAIT_TIMEOUT_S,
    )


def test_hostile_schemas_are_refused_at_their_place(helexa: Serve) -> None:
    neuron = helexa.find("neuron").pid
    for (path, body), (name, schema) in itertools.product(REQUESTS.items(), SCHEMAS.items()):
        for sent in (schema, _object(schema)):
            response = _post(helexa, path, body(sent))
            if path == LOOSE and response.status_code == 200:
                assert response.headers["x-helexa-ignored"].startswith("format"), name
                continue
            assert response.status_code == 400, (path, name, response.text)
            error = response.json()["error"]
            if isinstance(error, dict):
                found = error.get("details") or error
                code = found.get("code") or found["error_code"]
                assert code in ("invalid_schema", "invalid_grammar", "invalid_value"), error
                assert found["param"], error
    assert helexa.find("neuron").pid == neuron
    assert "Paris" in helexa.answer()


def test_a_gguf_whose_template_loops_holds_up_nobody(
    helexa: Serve, default_gguf: Path, tmp_path: Path
) -> None:
    name = add_model(helexa, with_template(default_gguf, tmp_path / "loops.gguf", LOOPS))
    for _ in range(13):
        response = _post(
            helexa, "/v1/chat/completions", {"model": name, "messages": USER, "max_tokens": 2}
        )
        assert response.status_code == 400, response.text
        assert response.json()["error"]["code"] == "template_limit_exceeded"
    assert "Paris" in helexa.answer()
    written = _post(helexa, "/v1/completions", {"model": name, "prompt": "A", "max_tokens": 2})
    assert written.status_code == 200, written.text
