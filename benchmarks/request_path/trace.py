"""Runs streamed chats through a gateway, a neuron and an engine, and records what they pass."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import redis

from benchmarks.gateway.processes import Processes
from benchmarks.request_path.recorder import Files, Recorder, on_each
from helexa_site.bootstrap.private_redis.redis_server import (
    configure_private_redis,
    discard_private_redis,
    wait_for_redis,
)
from helexa_site.bootstrap.suite import MODEL_CACHE_DIR, default_model_spec
from inference.neuron.host.discovery import Discovery
from inference.neuron.process.redis_client import connect
from inference.neuron.service import NeuronService
from inference.protocol.keys import neuron_queue
from inference.protocol.load import LoadSpec

NUM_CHATS = 3
NEURON = "here"
KV_MEMORY_BYTES = 64 * 2**20
IDLE_THREADS = (
    *("heartbeat", "cache-report", "pulls", "failed-loads", "devices", "resender"),
    "engine-stderr",
)
"""Threads of the neuron that no request waits for."""


def trace() -> dict[str, Files]:
    """The files on the way of one streamed chat, by process: gateway, neuron, engine."""
    with tempfile.TemporaryDirectory(prefix="helexa-path-") as folder, _redis(Path(folder)) as url:
        os.environ["HELEXA_DATA_DIR"] = folder
        return _trace(url, Path(folder))


def _trace(redis_url: str, folder: Path) -> dict[str, Files]:
    spec = default_model_spec()
    from benchmarks.request_path.gateway_side import ON_THE_WAY, chats  # after django.setup()
    from fleet.live.load_orders import load_orders

    here = threading.get_ident()

    def process() -> str | None:
        if threading.get_ident() == here:
            return "gateway" if ON_THE_WAY.get() else None
        return None if threading.current_thread().name in IDLE_THREADS else "neuron"

    recorder, engine_file = Recorder(process), folder / "engine.json"
    order = load_orders().order(neuron=NEURON, model=spec.model)
    spec = msgspec.structs.replace(spec, order=order, kv_memory_bytes=KV_MEMORY_BYTES)
    with recorder.installed(), _neuron(redis_url, spec, engine_file):
        found = asyncio.run(chats(redis_url, folder, spec.model, recorder, num_chats=NUM_CHATS))
    engines: list[Files] = json.loads(engine_file.read_text())
    return {
        **{name: on_each([chat[name] for chat in found]) for name in ("gateway", "neuron")},
        "engine": on_each(engines[1 : NUM_CHATS + 1]),
    }


@contextlib.contextmanager
def _redis(folder: Path) -> Iterator[str]:
    server = configure_private_redis(folder / "redis")
    with Processes(folder) as processes:
        try:
            processes.start("redis", server.command, os.environ)
            wait_for_redis(server.url)
            yield server.url
        finally:
            discard_private_redis(server, folder / "redis")


@contextlib.contextmanager
def _neuron(redis_url: str, spec: LoadSpec, engine_file: Path) -> Iterator[NeuronService]:
    neuron = NeuronService(
        name=NEURON,
        client=connect(redis_url),
        engine_command=[
            sys.executable,
            "-m",
            "benchmarks.request_path",
            "--engine",
            str(engine_file),
        ],
        discovery=Discovery.run(),
        cache_dir=MODEL_CACHE_DIR,
    )
    neuron.start()
    stopped = threading.Event()
    rings = redis.Redis.from_url(redis_url)

    def drain_when_rung() -> None:
        """Drains the inbox when it is rung, as the task ``drain_inbox`` does."""
        while not stopped.is_set():
            if rings.brpop([neuron_queue(NEURON)], timeout=1):
                neuron.drain_inbox()

    worker = threading.Thread(target=drain_when_rung, name="celery worker")
    worker.start()
    try:
        neuron.load_model(spec)
        yield neuron
    finally:
        stopped.set()
        worker.join()
        neuron.stop()
