"""Faults of an engine's steps as clients meet them: the default model, in an engine that breaks on
purpose. Which faults, by which prompts, is ``tests.inference.engine.faulty_executor``'s.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.inference.engine.faulty_executor import Kind
from tests.live.conftest import with_caches
from tests.live.serving import MODEL, WAIT_TIMEOUT_S, Serve, is_idle, wait_until

pytestmark = pytest.mark.slow

FAULTY_ENGINE = shlex.join([sys.executable, "-m", "tests.inference.engine.faulty_engine"])
STEP_TIMEOUT_S = "8"
LONG: dict[str, Any] = {"max_tokens": 100, "min_tokens": 100, "ignore_eos": True}


@pytest.fixture(scope="module")
def faulty(
    tmp_path_factory: pytest.TempPathFactory,
    model_cache_dir: Path,
    native_cache_dir: Path,
    default_gguf: Path,
) -> Iterator[Serve]:
    data_dir = with_caches(tmp_path_factory.mktemp("faulty"), model_cache_dir, native_cache_dir)
    with Serve(
        data_dir,
        HELEXA_ENGINE_COMMAND=FAULTY_ENGINE,
        HELEXA_STEP_TIMEOUT_S=STEP_TIMEOUT_S,
        HELEXA_ENGINE_CHECKS="1",
    ) as serve:
        yield serve


def complete(serve: Serve, first_token_id: int) -> httpx.Response:
    body = {"model": MODEL, "prompt": [first_token_id, 1, 2, 3]} | LONG
    return httpx.post(f"{serve.url}/v1/completions", json=body, timeout=WAIT_TIMEOUT_S)


def test_on_a_sound_device_each_fails_alone(faulty: Serve) -> None:
    kinds = (Kind.NOT_A_NUMBER, Kind.TOO_LARGE, Kind.BAD_SHAPE)
    undisturbed = faulty.answer(**LONG)
    with ThreadPoolExecutor() as pool:
        neighbours = [pool.submit(faulty.answer, **LONG) for _ in range(2)]
        broken = list(pool.map(lambda kind: complete(faulty, kind), kinds))
    assert [neighbour.result() for neighbour in neighbours] == [undisturbed] * 2
    refusals = [
        (r.status_code, r.json()["error"]["code"], "retry-after" in r.headers) for r in broken
    ]
    assert refusals == [
        (500, "numerical_error", False),
        (503, "out_of_memory", True),
        (500, "engine_error", False),
    ]
    wait_until(lambda: is_idle(faulty), "every block is free again")
    assert faulty.reported_replica()["num_restarts"] == 0


@pytest.mark.parametrize(
    ("kind", "code"),
    [(Kind.LOSES_THE_DEVICE, "device_fault"), (Kind.HANGS, "engine_hung")],
)
def test_what_an_engine_cannot_survive_is_reported_and_mended(
    faulty: Serve, kind: Kind, code: str
) -> None:
    wait_until(faulty.answers, "it answers before")
    before = faulty.reported_replica()
    response = complete(faulty, kind)
    assert (response.status_code, response.json()["error"]["code"]) == (503, code)
    assert int(response.headers["retry-after"]) >= 1
    wait_until(faulty.answers, "it answers again")
    after = faulty.reported_replica()
    assert after["num_restarts"] == before["num_restarts"] + 1
    wait_until(lambda: is_idle(faulty), "every block is free again")
