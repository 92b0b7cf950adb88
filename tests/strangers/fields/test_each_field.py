"""Each field at its least, usual and greatest value and one step outside, on the default model and
on a small real encoder; the table of values names every field that the OpenAPI document lists as
honoured.

Eight requests run at once: those of one endpoint, in turns with a plain greedy request whose answer
must stay what it was alone.
"""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from inference.wire.openapi import document
from tests.embedding_model import REVISION, SHA256, SOURCE
from tests.live.serving import Serve, create_model
from tests.strangers.fields import field_values as fields
from tests.strangers.fields.answers import Answer, ask, ask_streamed, check, error_of

NUM_AT_ONCE = 8
STREAMED = ("/v1/chat/completions", "/v1/completions")
PENALTIES = (
    {},
    {"frequency_penalty": 2},
    {"frequency_penalty": -0.1},
    {"presence_penalty": 2},
    {"presence_penalty": -0.5},
    {"frequency_penalty": 0.5, "presence_penalty": 0.5},
)
OPENAPI = document()


@pytest.mark.parametrize("path", fields.FIELDS | fields.EMBEDDING_FIELDS)
def test_every_honoured_field_is_tried(path: str) -> None:
    body = OPENAPI["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    honoured = _honoured(str(body["$ref"].rpartition("/")[2]))
    if "options" in honoured:
        honoured |= {f"options.{name}" for name in _honoured("POST_api_chat_options")}
    assert honoured == (fields.FIELDS | fields.EMBEDDING_FIELDS)[
        path
    ].keys() | fields.ELSEWHERE.get(path, {"model"})


def _honoured(component: str) -> set[str]:
    properties = OPENAPI["components"]["schemas"][component]["properties"]
    return {
        name for name, declared in properties.items() if declared.get("x-support") == "honoured"
    }


def cases(path: str, *, is_inside: bool) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, tried in (fields.FIELDS | fields.EMBEDDING_FIELDS)[path].items()
        for value in (tried.inside if is_inside else tried.outside)
    ]


@pytest.fixture(scope="module")
def encoder(server: Serve, embedding_model_dir: Path) -> None:
    create_model(
        server, name=fields.EMBEDDING_MODEL, source=SOURCE, revision=REVISION, sha256=SHA256
    )


@pytest.mark.slow
@pytest.mark.limit_s(900)
@pytest.mark.parametrize("path", fields.FIELDS | fields.EMBEDDING_FIELDS)
def test_what_is_outside_is_refused_by_name(client: httpx.Client, encoder: None, path: str) -> None:
    made = fields.embedding_of if path in fields.EMBEDDING_FIELDS else fields.body_of
    for name, value in cases(path, is_inside=False):
        response = client.post(path, json=made(path, name, value))
        assert response.status_code in (400, 422), (name, str(value)[:80], response.text[:200])
        error = error_of(response.json())
        assert name in f"{error.get('param')} {error['message']}", (name, str(value)[:80], error)


@pytest.mark.slow
@pytest.mark.limit_s(900)
@pytest.mark.parametrize("path", fields.FIELDS)
def test_what_is_inside_is_kept_to_among_neighbours(client: httpx.Client, path: str) -> None:
    plain = fields.plain_body(path, max_tokens=fields.SHORT_TOKENS)
    alone = ask(client, path, plain)
    check(path, plain, alone)

    def one(case: tuple[str, Any]) -> None:
        name, value = case
        body = fields.body_of(path, name, value)
        answer = ask(client, path, body)
        check(path, body, answer)
        if path in STREAMED and name != "prompt_logprobs":
            _check_streamed(path, body, answer, ask_streamed(client, path, body))
        assert texts(ask(client, path, plain)) == texts(alone), f"a neighbour of {name}: {value}"

    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        list(pool.map(one, cases(path, is_inside=True)))


def _check_streamed(path: str, body: dict[str, Any], answer: Answer, streamed: Answer) -> None:
    unread = ("logprobs", "return_token_ids")
    check(path, {name: value for name, value in body.items() if name not in unread}, streamed)
    if body["temperature"] == 0 or "seed" in body:
        assert texts(streamed) == texts(answer), body
        assert streamed.completion_tokens == answer.completion_tokens


def texts(answer: Answer) -> list[str]:
    return [answer.choices[index].text for index in sorted(answer.choices)]


@pytest.mark.slow
@pytest.mark.limit_s(900)
def test_penalties_are_as_in_the_log_probabilities(client: httpx.Client) -> None:
    path = "/v1/chat/completions"
    plain = fields.plain_body(path, max_tokens=300)
    shown = {"logprobs": True, "top_logprobs": 20, "ignore_eos": True}
    bodies = [plain | shown | penalties for penalties in PENALTIES]
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        answers = list(pool.map(lambda body: ask(client, path, body), bodies))
    for body, answer in zip(bodies, answers, strict=True):
        check(path, body, answer)
        assert len(answer.choices[0].logprobs) == 300
    assert len({answer.choices[0].text for answer in answers}) > 3


@pytest.mark.slow
@pytest.mark.limit_s(900)
@pytest.mark.parametrize("path", fields.EMBEDDING_FIELDS)
def test_embeddings_are_as_asked_for(client: httpx.Client, encoder: None, path: str) -> None:
    plain = fields.plain_embedding(path)
    (alone,) = vectors(path, client.post(path, json=plain).json())

    def one(case: tuple[str, Any]) -> None:
        name, value = case
        body = fields.embedding_of(path, name, value)
        response = client.post(path, json=body)
        assert response.status_code == 200, (name, str(value)[:80], response.text[:200])
        check_vectors(path, body, response.json())
        (again,) = vectors(path, client.post(path, json=plain).json())
        assert np.allclose(alone, again, atol=1e-5), f"a neighbour of {name}"

    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        list(pool.map(one, cases(path, is_inside=True)))


def check_vectors(path: str, body: dict[str, Any], answer: dict[str, Any]) -> None:
    found, given = vectors(path, answer), body.get("input", "")
    is_many = isinstance(given, list) and not isinstance(given[0], int)
    assert found.shape == (len(given) if is_many else 1, fields.DIMENSIONS)
    assert np.allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-3)
    counted = answer.get("prompt_eval_count") or answer.get("usage", {}).get("prompt_tokens")
    if body.get("truncate") is True:
        assert counted == fields.LIMIT
    if (kept := body.get("truncate_prompt_tokens")) is not None:
        assert counted == (fields.LIMIT if kept == -1 else kept)


def vectors(path: str, answer: dict[str, Any]) -> np.ndarray:
    if path == "/api/embeddings":
        return np.array([answer["embedding"]], np.float32)
    if path == "/api/embed":
        return np.array(answer["embeddings"], np.float32)
    assert [one["index"] for one in answer["data"]] == list(range(len(answer["data"])))
    return np.array([_floats(one["embedding"]) for one in answer["data"]])


def _floats(embedding: list[float] | str) -> np.ndarray:
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding), np.float32)
    return np.array(embedding, np.float32)
