"""Workers for templates and grammars that all tests of a process share: they start with the first
job, and end with the process's tests."""

from __future__ import annotations

from inference.sandbox.pool import WorkerPool

WORKERS = WorkerPool()
