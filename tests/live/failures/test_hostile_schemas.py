"""Schemas and templates that crash or hang what reads them, sent to a whole server in every
dialect: each is 400 at its place, and the neuron keeps running."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import httpx
import pytest

from tests.live.catalogue import add_model
from tests.live.serving import MODEL, WAIT_TIMEOUT_S, Serve, wait_until

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


def _tool(schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": "f", "parameters": _object(schema), "strict": True}


REQUESTS: dict[str, tuple[str, Any]] = {
    "chat": (
        "/v1/chat/completions",
        lambda schema: {
            "messages": USER,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": schema, "strict": True},
            },
        },
    ),
    "chat, vLLM's word": (
        "/v1/chat/completions",
        lambda schema: {"messages": USER, "guided_json": schema},
    ),
    "completions": (
        "/v1/completions",
        lambda schema: {"prompt": "Hello", "structured_outputs": {"json": schema}},
    ),
    "responses": (
        "/v1/responses",
        lambda schema: {
            "input": "Hello",
            "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}},
        },
    ),
    "messages": (
        "/v1/messages",
        lambda schema: {
            "max_tokens": 5,
            "messages": USER,
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
        },
    ),
    "messages, counted": (
        "/v1/messages/count_tokens",
        lambda schema: {
            "messages": USER,
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
        },
    ),
    "Ollama's chat": (
        "/api/chat",
        lambda schema: {"messages": USER, "format": schema, "stream": False},
    ),
    "Ollama's generate": (
        "/api/generate",
        lambda schema: {"prompt": "Hello", "format": schema, "stream": False},
    ),
}


def _post(helexa: Serve, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(
        f"{helexa.url}{path}",
        content=json.dumps({"model": MODEL} | body),
        headers={"Content-Type": "application/json"},
        timeout=WAIT_TIMEOUT_S,
    )


@pytest.mark.parametrize("dialect", REQUESTS)
def test_hostile_schemas_are_400_in_every_dialect(helexa: Serve, dialect: str) -> None:
    path, body = REQUESTS[dialect]
    neuron = helexa.find("neuron").pid
    for name, schema in SCHEMAS.items():
        for sent in (schema, _object(schema)):
            response = _post(helexa, path, body(sent))
            assert response.status_code == 400, (name, response.text)
            error = response.json()["error"]
            if isinstance(error, dict):
                found = error.get("details") or error
                code = found.get("code") or found["error_code"]
                assert code in ("invalid_schema", "invalid_grammar", "invalid_value"), error
                assert found["param"], error
    assert helexa.find("neuron").pid == neuron
    assert "Paris" in helexa.answer()


def test_hostile_lines_of_a_batch_fail_alone(helexa: Serve) -> None:
    path, body = REQUESTS["chat"]
    lines = [
        {
            "custom_id": f"c{index}",
            "method": "POST",
            "url": path,
            "body": {"model": MODEL, "max_tokens": 2} | fields,
        }
        for index, fields in enumerate(
            [{"messages": USER}, *(body(schema) for schema in SCHEMAS.values())]
        )
    ]
    file = httpx.post(
        f"{helexa.url}/v1/files",
        data={"purpose": "batch"},
        files={"file": ("b.jsonl", "\n".join(map(json.dumps, lines)))},
        timeout=WAIT_TIMEOUT_S,
    ).json()
    batch = httpx.post(
        f"{helexa.url}/v1/batches",
        json={"input_file_id": file["id"], "endpoint": path, "completion_window": "24h"},
        timeout=WAIT_TIMEOUT_S,
    ).json()

    def ended() -> Any:
        url = f"{helexa.url}/v1/batches/{batch['id']}"
        seen = httpx.get(url, timeout=WAIT_TIMEOUT_S).json()
        return seen if seen.get("status") in ("completed", "failed") else None

    found = wait_until(ended, "the batch has ended")
    assert found["request_counts"]["failed"] == len(SCHEMAS), found
    assert found["request_counts"]["completed"] == 1, found


def with_template(default_gguf: Path, copy: Path, template: str) -> Path:
    """The same weights with another chat template, which takes the old one's bytes."""
    old = gguf.GGUFReader(default_gguf).fields["tokenizer.chat_template"].contents().encode()
    padding = len(old) - len(template.encode()) - len("{##}")
    new = b"{#%b#}%b" % (b" " * padding, template.encode())
    data = default_gguf.read_bytes()
    assert data.count(old) == 1
    copy.write_bytes(data.replace(old, new))
    return copy


@pytest.mark.slow
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
