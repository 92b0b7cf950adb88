"""A fleet on SQLite: a real model that no host holds, over two of them, each with a memory limit
that is too small for it. Which neuron a model moves to, and what waits or ends meanwhile, is in
``tests/fleet/placement``; what ``scripts/rolling-deploy`` does, in ``tests/fleet/commands``."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from fleet.services.catalogue import DEFAULT_MODEL_SAMPLING
from tests.live.conftest import with_caches
from tests.live.fleets.fleet import Fleet, running_fleet
from tests.live.serving import WAIT_TIMEOUT_S, Serve, chat_body, text_of
from tests.processes import command_line

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

HOSTS = ("attic", "cellar")
LIMIT = "cpu=3200MB"
KV_BYTES = 3_400_000_000
"""The KV memory, more than a host may use and less than both; the system hands its pages out as
they are used."""
NUM_LAYERS = 30
ASKED: dict[str, Any] = {"model": "large", "max_tokens": 48, "temperature": 0}
COMES_BACK = (
    *("device_fault", "engine_crashed", "load_failed"),
    *("model_recovering", "neuron_lost", "recovering"),
)
"""Codes of requests to a model that has lost a part and is loaded again."""


def answer_of(fleet: Fleet) -> str:
    """The answer to a client that sends its request again where it is asked to. The first one may
    reach the engine before that knows that its other half is gone."""
    (url,) = fleet.gateway_urls
    deadline_s = time.monotonic() + 2 * WAIT_TIMEOUT_S
    while True:
        body = chat_body(**ASKED)
        response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=WAIT_TIMEOUT_S)
        if response.status_code != 503:
            return text_of(response)
        assert response.json()["error"]["code"] in COMES_BACK, response.text
        assert time.monotonic() < deadline_s, f"{response.text}\n{fleet.describe()}"
        time.sleep(min(5.0, float(response.headers["Retry-After"])))


def stages_of(url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two stages, which have all layers between them."""
    model = httpx.get(f"{url}/v1/models/large", timeout=WAIT_TIMEOUT_S).json()
    (place,) = model["locations"]
    assert place["predicted_tokens_per_s"] > 0
    first, second = place["stages"]
    assert (first["first_layer"], second["last_layer"]) == (0, NUM_LAYERS)
    assert first["last_layer"] == second["first_layer"]
    return first, second


def test_two_hosts_answer_as_one_does(
    tmp_path: Path, model_cache_dir: Path, native_cache_dir: Path, helexa: Serve, default_gguf: Path
) -> None:
    """No row to the other host is rounded. It comes back when either part has ended, and an unload
    leaves nothing on either host."""
    environment = {"HELEXA_MEMORY_LIMIT": LIMIT, "HELEXA_STAGE_LISTEN": "127.0.0.1"}
    fields = {"spread": "fleet", "device": "cpu", "dtype": "float32", "kv_memory_bytes": KV_BYTES}
    with running_fleet(tmp_path) as fleet:
        fleet.add_control()
        fleet.add_gateway()
        for name in HOSTS:
            data_dir = with_caches(tmp_path / name, model_cache_dir, native_cache_dir)
            fleet.add_real_neuron(name, data_dir, **environment)
        fleet.wait(lambda: len(fleet.snapshot().neurons) == len(HOSTS), "both neurons are there")
        fleet.shell(
            f"services.catalogue_model_create(actor=COMMAND, name='large', "
            f"source='path:{default_gguf}', **{DEFAULT_MODEL_SAMPLING | fields!r})"
        )
        (url,) = fleet.gateway_urls
        fleet.wait(lambda: httpx.get(f"{url}/v1/models/large").is_success, "it is offered")
        expected = helexa.answer(max_tokens=ASKED["max_tokens"])
        assert answer_of(fleet) == expected, fleet.describe()
        first, second = stages_of(url)
        assert {first["node"], second["node"]} == set(HOSTS)
        for host in (second["node"], first["node"]):  # a stage alone, then the engine
            for process in engines(fleet, host):
                with contextlib.suppress(psutil.NoSuchProcess):  # it ended with the one before
                    process.kill()
            assert answer_of(fleet) == expected, fleet.describe()
        fleet.manage("models", "unload", "large")
        fleet.wait(lambda: nothing_is_left(fleet), "nothing is left on either host")


def engines(fleet: Fleet, host: str) -> list[psutil.Process]:
    neuron = psutil.Process(fleet.programs[host].process.pid)
    children = neuron.children(recursive=True)
    return [one for one in children if "inference.engine" in command_line(one)]


def nothing_is_left(fleet: Fleet) -> bool:
    neurons = fleet.snapshot().neurons
    return len(neurons) == len(HOSTS) and all(
        not one.replicas
        and not one.held_stages
        and not any(device.reserved_bytes for device in one.devices)
        and not engines(fleet, one.name)
        for one in neurons
    )
