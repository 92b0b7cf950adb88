"""Workers for templates and grammars that all tests of a process share: they start with the first
job, and end with the process's tests. A fork server takes a second and more to import what it
needs, which each neuron of the tests would spend again."""

from __future__ import annotations

from inference.sandbox.pool import WorkerPool


class SharedWorkers(WorkerPool):
    """What a neuron ends with itself stays for the next one."""

    def close(self) -> None: ...

    def close_for_good(self) -> None:
        super().close()


WORKERS = SharedWorkers()
