"""Each field of the embeddings endpoints at its least, usual and greatest value and one step
outside, on a small real encoder, eight requests at once.
"""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.embedding_model import REVISION, SHA256, SOURCE
from tests.live.catalogue import create_model
from tests.live.serving import Serve
from tests.strangers.fields.answers import error_of
from tests.strangers.fields.field_values import (
    DIMENSIONS,
    EMBEDDING_FIELDS,
    EMBEDDING_MODEL,
    LIMIT,
    embedding_of,
    plain_embedding,
)

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

NUM_AT_ONCE = 8


@pytest.fixture(scope="module", autouse=True)
def _offered(server: Serve, embedding_model_dir: Path) -> None:
    create_model(server, name=EMBEDDING_MODEL, source=SOURCE, revision=REVISION, sha256=SHA256)


def cases(path: str, *, is_inside: bool) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, tried in EMBEDDING_FIELDS[path].items()
        for value in (tried.inside if is_inside else tried.outside)
    ]


@pytest.mark.parametrize("path", EMBEDDING_FIELDS)
def test_what_is_outside_is_refused_by_name(client: httpx.Client, path: str) -> None:
    for name, value in cases(path, is_inside=False):
        response = client.post(path, json=embedding_of(path, name, value))
        assert response.status_code in (400, 422), (name, str(value)[:80], response.text[:200])
        error = error_of(response.json())
        assert name in f"{error.get('param')} {error['message']}", (name, str(value)[:80], error)


@pytest.mark.parametrize("path", EMBEDDING_FIELDS)
def test_what_is_inside_is_kept_to_among_neighbours(client: httpx.Client, path: str) -> None:
    plain = plain_embedding(path)
    (alone,) = vectors(path, client.post(path, json=plain).json())

    def one(case: tuple[str, Any]) -> None:
        name, value = case
        body = embedding_of(path, name, value)
        response = client.post(path, json=body)
        assert response.status_code == 200, (name, str(value)[:80], response.text[:200])
        check(path, body, response.json())
        (again,) = vectors(path, client.post(path, json=plain).json())
        assert np.allclose(alone, again, atol=1e-5), f"a neighbour of {name}"

    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        list(pool.map(one, cases(path, is_inside=True)))


def check(path: str, body: dict[str, Any], answer: dict[str, Any]) -> None:
    found = vectors(path, answer)
    assert found.shape == (num_inputs(body), DIMENSIONS)
    assert np.isfinite(found).all()
    assert np.allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-3)
    counted = num_tokens(path, answer)
    if body.get("truncate") is True:
        assert counted == LIMIT
    if (kept := body.get("truncate_prompt_tokens")) is not None:
        assert counted == (LIMIT if kept == -1 else kept)


def num_inputs(body: dict[str, Any]) -> int:
    given = body.get("input", "")
    return len(given) if isinstance(given, list) and not isinstance(given[0], int) else 1


def num_tokens(path: str, answer: dict[str, Any]) -> int | None:
    """``None``: the endpoint reports none."""
    if path == "/v1/embeddings":
        return int(answer["usage"]["prompt_tokens"])
    return answer.get("prompt_eval_count")


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
