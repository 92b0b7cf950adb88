"""Two real models on a host that holds one of them: each is loaded when somebody asks for it, and
the other one leaves for it. The host's size is simulated, so that any machine is too small; the
engines are real.

Slow for its size: three loads of a real model, because what a second load knows is part of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from inference.neuron.simulated_devices import VARIABLE
from tests.live.catalogue import create_model
from tests.live.conftest import with_caches
from tests.live.serving import Serve, wait_until

HOST_BYTES = 2_000_000_000
KV_BYTES = 800_000_000
EXPECTED_MB = 1_300
"""Of one model with its KV and its process, until a load has shown it; two are more than the host
has."""


@pytest.fixture
def small_host(tmp_path: Path, model_cache_dir: Path, native_cache_dir: Path) -> Iterator[Serve]:
    devices = tmp_path / "devices.json"
    devices.write_text(
        json.dumps({"devices": [{"kind": "cpu", "memory_bytes": HOST_BYTES, "name": "small"}]})
    )
    data_dir = with_caches(tmp_path / "var", model_cache_dir, native_cache_dir)
    serve = Serve(data_dir, "--no-model", **{VARIABLE: str(devices)})
    try:
        serve.wait_ready()
        yield serve
    finally:
        serve.end()


class Watch:
    """Looks at the replicas all the while."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._ended = threading.Event()
        self.least_free_bytes = HOST_BYTES
        self.together: set[frozenset[str]] = set()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            try:
                neurons = self._serve.health()["neurons"]
            except (httpx.HTTPError, ValueError):
                continue
            for neuron in neurons:
                ready = [one["model"] for one in neuron["replicas"] if one["status"] == "ready"]
                self.together.add(frozenset(ready))
                free = [device["free_memory_bytes"] for device in neuron["devices"]]
                self.least_free_bytes = min(self.least_free_bytes, *free)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def test_two_models_take_turns_on_a_host_that_holds_one(
    small_host: Serve, default_gguf: Path
) -> None:
    serve, source = small_host, f"path:{default_gguf}"
    for name in ("first", "second"):
        create_model(serve, name=name, source=source, kv_memory_bytes=KV_BYTES, vram_mb=EXPECTED_MB)
    watch = Watch(serve)
    try:
        for name, other in (("first", "second"), ("second", "first"), ("first", "second")):
            assert "Paris" in serve.answer(model=name), serve.describe()
            replica = serve.replica(name)
            assert replica is not None and replica["status"] == "ready"
            wait_until(lambda other=other: serve.replica(other) is None, "the other one has left")
    finally:
        watch.end()
    assert frozenset({"first", "second"}) not in watch.together
    assert {frozenset({"first"}), frozenset({"second"})} <= watch.together
    # What the one that is loaded was promised is not free for the other.
    assert watch.least_free_bytes <= HOST_BYTES - KV_BYTES
