"""The parts of its neuron that a replica uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from inference.neuron.loads.admission import LoadAdmission
from inference.neuron.loads.files import FileChecker
from inference.neuron.loads.load import Load
from inference.neuron.loads.queue import LoadQueue
from inference.neuron.replicas.engine_process import EngineProcess
from inference.neuron.replicas.retries import RestartPolicy
from inference.neuron.requests.request_table import AddressedEvent, RequestTable
from inference.neuron.requests.starter import PreparingMarks
from inference.protocol.load import LoadSpec
from inference.sandbox.pool import WorkerPool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaContext:
    table: RequestTable
    publish: Callable[[list[AddressedEvent]], None]
    start_engine: Callable[[LoadSpec], EngineProcess]
    workers: WorkerPool
    marks: PreparingMarks
    loads: LoadQueue
    admission: LoadAdmission
    checker: FileChecker
    discard: Callable[[Load], None]
    """Called for a load that can never succeed: deletes its downloads."""
    on_change: Callable[[], None]
    """The status moved."""
    on_gone: Callable[[Load], None]
    """Unloaded or stopped: the engine process has ended for good."""
    restart_policy: RestartPolicy = field(default_factory=RestartPolicy)
    load_stall_limit_s: float | None = None
    """Seconds that a load may make no progress before it is ended; ``None``: no limit."""
    clock: Callable[[], float] = time.monotonic
    silence_limit_s: float | None = None
    """Seconds that a loaded engine may send nothing before it is killed; ``None``: no limit."""
