"""A real model that no card of a host holds, divided over two. The cards are simulated, so that any
machine has two that are too small; both halves are computed by the real engine."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet.services.offers.catalogue import DEFAULT_MODEL_SAMPLING
from inference.engine.stages.stage_processes import STAGE
from tests.live.catalogue import create_model, operate
from tests.live.conftest import with_caches
from tests.live.scripted.simulated_devices import device_environment
from tests.live.serving import WAIT_TIMEOUT_S, Serve, text_of, wait_until
from tests.processes import command_line

CARD_BYTES = 3_200_000_000
HOST_BYTES = 1_200_000_000
KV_BYTES = 3_400_000_000
"""The KV memory, more than a card has and less than both; the system hands its pages out as they
are used."""
NUM_LAYERS = 30
ENGINE = shlex.join(
    [sys.executable, "-m", "tests.live.scripted.engine_on_processors", "inference.engine"]
)
ASKED: dict[str, Any] = {"max_tokens": 48, "temperature": 0}


@pytest.fixture
def two_cards(tmp_path: Path, model_cache_dir: Path, native_cache_dir: Path) -> Iterator[Serve]:
    devices = tmp_path / "devices.json"
    sizes = [("cuda", CARD_BYTES), ("cuda", CARD_BYTES), ("cpu", HOST_BYTES)]
    described = [{"kind": kind, "memory_bytes": size} for kind, size in sizes]
    devices.write_text(json.dumps({"devices": described}))
    data_dir = with_caches(tmp_path / "var", model_cache_dir, native_cache_dir)
    serve = Serve(
        data_dir, "--no-model", HELEXA_ENGINE_COMMAND=ENGINE, **device_environment(devices)
    )
    try:
        serve.wait_ready()
        yield serve
    finally:
        serve.end()


@pytest.mark.slow
def test_a_model_that_no_card_holds_answers_from_two(
    two_cards: Serve, helexa: Serve, default_gguf: Path
) -> None:
    """The first load, on one card, reports what its layers take; the request waits for the
    second one, which is divided. ``helexa`` has the same model whole. Asleep it leaves both cards
    the memory of its keys and values, and it comes back when a process of it has ended."""
    create_model(
        two_cards,
        name="large",
        source=f"path:{default_gguf}",
        device="cuda",
        kv_memory_bytes=KV_BYTES,
        **DEFAULT_MODEL_SAMPLING,
    )
    answer = two_cards.answer(model="large", **ASKED)
    assert answer == helexa.answer(**ASKED), two_cards.describe()
    free = free_of_each_card(two_cards)
    assert all(0 < free_bytes < CARD_BYTES - KV_BYTES / 4 for free_bytes in free)
    model = httpx.get(f"{two_cards.url}/v1/models/large", timeout=WAIT_TIMEOUT_S).json()
    (place,) = model["locations"]
    first, second = place["stages"]
    assert (first["device"], second["device"]) == ("cuda:0", "cuda:1")
    assert (first["first_layer"], second["last_layer"]) == (0, NUM_LAYERS)
    assert first["last_layer"] == second["first_layer"]
    assert place["predicted_tokens_per_s"] > 0
    operate(two_cards, "POST", "/api/catalogue/large/sleep")
    wait_until(lambda: are_more(free_of_each_card(two_cards), free), "memory of both cards")
    assert two_cards.answer(model="large", **ASKED) == answer, two_cards.describe()
    wait_until(lambda: free_of_each_card(two_cards) == free, "the model where it was")
    (stage,) = [one for one in two_cards.processes() if STAGE in command_line(one)]
    stage.kill()
    assert answered_after_a_fault(two_cards) == answer, two_cards.describe()


def answered_after_a_fault(serve: Serve) -> str:
    """The answer to a client that sends its request again where it is asked to. The first one may
    reach the engine before that knows that its other half is gone."""
    response = serve.chat(model="large", **ASKED)
    while response.status_code == 503:
        assert response.json()["error"]["code"] in ("device_fault", "model_recovering")
        time.sleep(float(response.headers["Retry-After"]))
        response = serve.chat(model="large", **ASKED)
    return text_of(response)


def are_more(numbers: list[int], others: list[int]) -> bool:
    return all(number > other for number, other in zip(numbers, others, strict=True))


def free_of_each_card(serve: Serve) -> list[int]:
    (neuron,) = serve.reported_neurons()
    return [one["free_memory_bytes"] for one in neuron["devices"] if one["kind"] == "cuda"]
