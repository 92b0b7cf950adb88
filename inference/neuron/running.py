"""The neuron's process, from its environment to its exit code. Imports no Django and no torch."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from celery.signals import setup_logging, worker_shutting_down

from inference.logs.setup import configure_logging
from inference.neuron.celery_app import create_app, create_worker
from inference.neuron.device_sampler import DeviceSampler
from inference.neuron.earlier_life import EarlierLife
from inference.neuron.ending import EXIT_NAME_LOST, Ending
from inference.neuron.engine_process import engine_command
from inference.neuron.name_lease import NameHeldError
from inference.neuron.redis_client import RedisUntrustedError, connect
from inference.neuron.service import NeuronService
from inference.neuron.silence import silence_limit_s
from inference.neuron.simulated_devices import SimulatedDevices
from inference.neuron.tasks import register_tasks
from inference.protocol.draining import drain_limit_s
from inference.protocol.stalls import stall_limit_s

log = logging.getLogger("inference.neuron")

DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"
SWITCH_INTERVAL_S = 0.0005
"""How long a thread that renders a long conversation keeps the interpreter from the others. A
request's first token passes through a dozen of their hands: at Python's 5 ms that is 50 ms."""
EXIT_NAME_HELD = 1
EXIT_MISCONFIGURED = 2


def run(name: str) -> int:
    """Runs the neuron until SIGTERM. Returns the exit code."""
    try:
        configure_logging("neuron")
    except ValueError as error:
        print(f"neuron: {error}", file=sys.stderr)
        return EXIT_MISCONFIGURED
    # Celery leaves its own way of logging where somebody answers this.
    setup_logging.connect(lambda **_: None, weak=False)
    data_dir = Path(os.environ.get("HELEXA_DATA_DIR") or "var").resolve()
    os.environ["HELEXA_DATA_DIR"] = str(data_dir)  # engines inherit it
    # One prompt at a time is tokenized: a pool of threads for batches would only take cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        limit_s = silence_limit_s(os.environ)
        stalled_s = stall_limit_s(os.environ)
        ending = Ending(limit_s=drain_limit_s(os.environ))
        simulated = SimulatedDevices.from_environment(os.environ)
    except ValueError as error:
        log.critical("%s", error)
        return EXIT_MISCONFIGURED
    # From the environment alone: everybody on this machine can read a command line.
    redis_url = os.environ.get("REDIS_URL") or DEFAULT_REDIS_URL
    service = NeuronService(
        name=name,
        client=connect(redis_url),
        engine_command=engine_command(os.environ),
        discovery=simulated or DeviceSampler(),
        silence_limit_s=limit_s,
        stall_limit_s=stalled_s,
        cache_dir=data_dir / "models",
        on_name_lost=ending.name_is_lost,
    )
    try:
        service.lease.acquire(EarlierLife(data_dir, name))
    except NameHeldError as error:
        log.critical("%s", error)
        return EXIT_NAME_HELD
    except RedisUntrustedError as error:
        log.critical("%s", error)
        return EXIT_MISCONFIGURED
    app = create_app(name=name, redis_url=redis_url)
    register_tasks(app, service)
    worker = create_worker(app, name=name)
    worker_shutting_down.connect(ending.begin, weak=False)
    ending.watch(service)
    service.start()
    log.info("neuron %s is up (epoch %s)", name, service.epoch)
    worker.start()
    # Celery's worker calls an interrupt a failure.
    exit_code = 0 if ending.is_asked_for else int(worker.exitcode or 0)
    ending.finish()
    return EXIT_NAME_LOST if ending.is_name_lost else exit_code
