"""A catalogue model that is not loaded is loaded by the first request for it."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.live.catalogue import add_model
from tests.live.operating.on_demand import NUM_OTHERS, LoadedOnDemand
from tests.live.serving import WAIT_TIMEOUT_S, Abandoned, Serve, chat_body, wait_until

FREE_WITHIN_S = 30.0


def test_is_loaded_by_the_first_request(helexa: Serve, on_demand: LoadedOnDemand) -> None:
    assert not on_demand.was_loaded_before
    assert "Paris" in on_demand.streamed
    assert "Paris" in helexa.answer(model=on_demand.name)


def test_one_load_for_many_requests(on_demand: LoadedOnDemand) -> None:
    """All of them wait for the same load."""
    assert on_demand.statuses_of_others == [200] * NUM_OTHERS
    assert [replica["status"] for replica in on_demand.replicas] == ["ready"]


def test_disconnect_while_queued(helexa: Serve, on_demand: LoadedOnDemand) -> None:
    """Those that wait for blocks give up; so do those that hold them."""
    loaded = on_demand.name
    helexa.answer(model=loaded, max_tokens=1)

    def queued_and_used() -> tuple[int, int] | None:
        """Requests and blocks; ``None`` while the neuron's heartbeat is late."""
        found = helexa.replica(loaded)
        return None if found is None else (found["queue_depth"], found["kv_blocks_used"])

    def some_wait() -> bool:
        found = queued_and_used()
        return found is not None and found[0] > 0

    requests = [
        Abandoned(
            helexa,
            model=loaded,
            messages=[{"role": "user", "content": f"{number} " + "describe the sea, " * 150}],
            max_tokens=1000,
            min_tokens=1000,
            ignore_eos=True,
        )
        for number in range(12)
    ]
    wait_until(some_wait, "some wait for blocks")
    for request in reversed(requests):
        request.leave()
    wait_until(
        lambda: queued_and_used() == (0, 0),
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
    wait_until(helexa.is_healthy, "a refusal leaves nothing wrong")
