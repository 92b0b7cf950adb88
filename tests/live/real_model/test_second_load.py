"""A model that is not loaded is loaded by the first request for it. What that took sharpens the
estimate of its second load, through the whole fleet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from tests.live.catalogue import add_model, operate, run
from tests.live.serving import WAIT_TIMEOUT_S, Serve, wait_until


def recorded_report(helexa: Serve, name: str) -> dict[str, Any]:
    """The load report of the replica's row, once what it took is written down."""
    code = (
        "import json\n"
        "from fleet.models import LoadMeasurement, Replica\n"
        f"measured = LoadMeasurement.objects.filter(model__name={name!r}).exists()\n"
        f"row = Replica.objects.filter(model_name={name!r}, status='ready').first()\n"
        "print(json.dumps(row.report if measured and row else None))"
    )
    report: dict[str, Any] = wait_until(
        lambda: json.loads(run(helexa, code)), "the load is recorded"
    )
    return report


def test_the_second_load_knows_what_the_first_one_took(helexa: Serve, default_gguf: Path) -> None:
    name = add_model(helexa, default_gguf)
    assert helexa.replica(name) is None
    assert "Paris" in helexa.answer(model=name)
    first = recorded_report(helexa, name)
    assert first["actual_bytes"] > first["weight_bytes"] + first["kv_bytes"]
    operate(helexa, "POST", f"/api/catalogue/{name}/unload")
    wait_until(lambda: helexa.replica(name) is None, "it is unloaded")
    assert "Paris" in helexa.answer(model=name)
    second = recorded_report(helexa, name)
    error_bytes = second["estimated_bytes"] - second["actual_bytes"]
    assert abs(error_bytes) <= 0.05 * (second["actual_bytes"] - second["kv_bytes"])

    # The context that was derived is advertised and enforced.
    context_tokens = second["context_tokens"]
    card = httpx.get(f"{helexa.url}/v1/models/{name}", timeout=WAIT_TIMEOUT_S).json()
    assert card["limit"]["context"] == context_tokens
    prompt_tokens = helexa.chat(model=name, max_tokens=1).json()["usage"]["prompt_tokens"]
    refused = helexa.chat(model=name, max_tokens=context_tokens - prompt_tokens + 1)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert f"context length is {context_tokens} tokens" in refused.json()["error"]["message"]
