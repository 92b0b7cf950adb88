"""A catalogue model that is not loaded is loaded by the first request for it."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tests.live.catalogue import add_model
from tests.live.serving import WAIT_TIMEOUT_S, Abandoned, Serve, chat_body, wait_until

FREE_WITHIN_S = 30.0


@pytest.fixture(scope="module")
def loaded(shared_server: Serve, default_gguf: Path) -> str:
    """A model that the first request has loaded; the request streamed its answer."""
    name = add_model(shared_server, default_gguf)
    assert shared_server.replica(name) is None
    assert shared_server.is_healthy()
    with shared_server.stream(model=name) as stream:
        assert stream.response.status_code == 200
        events = list(stream)
    text = "".join(
        json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1]
    )
    assert "Paris" in text
    return name


def test_is_loaded_by_the_first_request(helexa: Serve, loaded: str) -> None:
    replica = helexa.replica(loaded)
    assert replica is not None
    assert replica["status"] == "ready"
    assert "Paris" in helexa.answer(model=loaded)


def test_one_load_for_many_requests(helexa: Serve, default_gguf: Path) -> None:
    """All of them wait for the same load."""
    name = add_model(helexa, default_gguf)
    requests = [Abandoned(helexa, model=name, max_tokens=4) for _ in range(4)]
    assert "Paris" in helexa.answer(model=name)
    for request in requests:
        request.wait()
        assert request.status == 200
    engines = [
        replica
        for neuron in helexa.health()["neurons"]
        for replica in neuron["replicas"]
        if replica["model"] == name
    ]
    assert len(engines) == 1


def test_disconnect_while_queued(helexa: Serve, loaded: str) -> None:
    """Those that wait for blocks give up; so do those that hold them."""

    def replica() -> dict[str, int]:
        found = helexa.replica(loaded)
        assert found is not None
        return found

    requests = [
        Abandoned(
            helexa,
            model=loaded,
            messages=[{"role": "user", "content": f"{number} " + "tell me of the sea " * 150}],
            max_tokens=1000,
            min_tokens=1000,
            ignore_eos=True,
        )
        for number in range(12)
    ]
    wait_until(lambda: replica()["queue_depth"] > 0, "some wait for blocks")
    for request in reversed(requests):
        request.leave()
    wait_until(
        lambda: (replica()["queue_depth"], replica()["kv_blocks_used"]) == (0, 0),
        "all are free long before they could end",
        FREE_WITHIN_S,
    )
    assert "Paris" in helexa.answer(model=loaded)


def test_a_model_that_cannot_be_loaded_is_refused_with_the_reason(
    helexa: Serve, tmp_path: Path
) -> None:
    name = add_model(helexa, tmp_path / "missing.gguf")
    response = httpx.post(
        f"{helexa.url}/v1/chat/completions", json=chat_body(model=name), timeout=WAIT_TIMEOUT_S
    )
    assert response.status_code == 422
    assert "retry-after" not in response.headers  # nor would a second try be another
    assert "missing.gguf" in response.json()["error"]["message"]
    assert helexa.is_healthy()
