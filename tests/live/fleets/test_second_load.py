"""What a model's first load took sharpens the estimate of its second, through the whole fleet."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.catalogue import add_model
from tests.live.serving import REPOSITORY_DIR, WAIT_TIMEOUT_S, Serve, chat_body, wait_until

pytestmark = pytest.mark.slow


def shell(helexa: Serve, code: str) -> str:
    """Runs ``code`` as an operator with a shell on the gateway's machine; what it prints."""
    done = subprocess.run(
        [sys.executable, str(REPOSITORY_DIR / "manage.py"), "shell", "-v", "0", "-c", code],
        env=helexa.find("gateway").environ(),
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_TIMEOUT_S,
    )
    return done.stdout


def recorded_report(helexa: Serve, name: str) -> dict[str, Any]:
    """The load report of the replica's row, once what it took is written down."""
    code = (
        "import json; from fleet.models import LoadMeasurement, Replica; "
        f"measured = LoadMeasurement.objects.filter(model__name={name!r}).exists(); "
        f"row = Replica.objects.filter(model_name={name!r}, status='ready').first(); "
        "print(json.dumps(row.report if measured and row else None))"
    )
    report = wait_until(lambda: json.loads(shell(helexa, code)), "the load is recorded")
    assert isinstance(report, dict)
    return report


@dataclass(frozen=True, slots=True)
class TwiceLoaded:
    name: str
    first: dict[str, Any]
    second: dict[str, Any]
    """Load reports."""


@pytest.fixture(scope="module")
def twice(shared_server: Serve, default_gguf: Path) -> TwiceLoaded:
    """A model that was loaded for a request, unloaded, and loaded for another."""
    helexa, name = shared_server, add_model(shared_server, default_gguf)
    assert "Paris" in helexa.answer(model=name)
    first = recorded_report(helexa, name)
    neuron = helexa.reported_neurons()[0]["name"]
    shell(
        helexa,
        "from fleet import services; from metering.actor import COMMAND; "
        f"services.unload_job_start(actor=COMMAND, model_name={name!r}, neuron_name={neuron!r})",
    )
    wait_until(lambda: helexa.replica(name) is None, "it is unloaded")
    assert "Paris" in helexa.answer(model=name)
    return TwiceLoaded(name, first, recorded_report(helexa, name))


def test_the_second_load_knows_what_the_first_one_took(twice: TwiceLoaded) -> None:
    first, second = twice.first, twice.second
    assert first["actual_bytes"] > first["weight_bytes"] + first["kv_bytes"]
    error_bytes = second["estimated_bytes"] - second["actual_bytes"]
    assert abs(error_bytes) <= 0.05 * (second["actual_bytes"] - second["kv_bytes"])


def test_one_number_is_derived_advertised_and_enforced(helexa: Serve, twice: TwiceLoaded) -> None:
    context_tokens = twice.second["context_tokens"]
    card = httpx.get(f"{helexa.url}/v1/models/{twice.name}", timeout=30.0).json()
    assert card["limit"]["context"] == context_tokens

    def ask(max_tokens: int) -> httpx.Response:
        body = chat_body(model=twice.name, max_tokens=max_tokens)
        url = f"{helexa.url}/v1/chat/completions"
        return httpx.post(url, json=body, timeout=WAIT_TIMEOUT_S)

    prompt_tokens = ask(1).json()["usage"]["prompt_tokens"]
    refused = ask(context_tokens - prompt_tokens + 1)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert f"context length is {context_tokens} tokens" in refused.json()["error"]["message"]
