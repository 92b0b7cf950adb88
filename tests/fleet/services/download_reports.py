"""What a neuron reports of its downloads and its cache, as tests of them write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from fleet import services
from fleet.models import Download, Neuron
from inference.protocol.keys import downloads_key
from inference.protocol.load_report import LoadProgress, LoadStage
from inference.protocol.neuron_tasks import (
    CachedFile,
    CachedModel,
    CacheJobState,
    CacheJobStatus,
    CacheReport,
    encode_cache_report,
)
from metering.audit import COMMAND

SOURCE = "huggingface:Qwen/Qwen3-0.6B"
GB = 10**9


def cached(source: str = SOURCE, **changes: Any) -> CachedModel:
    values: dict[str, Any] = {
        "revision": "abc",
        "files": [CachedFile(name="model.safetensors", num_bytes=5 * GB)],
        "num_bytes": 5 * GB,
    }
    return CachedModel(source=source, **values | changes)


def report(neuron: str = "beast", **changes: Any) -> CacheReport:
    values: dict[str, Any] = {
        "time_unix_s": 1e9,
        "disk_total_bytes": 100 * GB,
        "disk_free_bytes": 50 * GB,
        "cached": [],
        "jobs": [],
    }
    return CacheReport(neuron=neuron, **values | changes)


@pytest.fixture
def publish_report(redis_db: redis.Redis) -> Callable[..., None]:
    """The neuron reports its downloads."""

    def publish_report(neuron: str = "beast", **changes: Any) -> None:
        redis_db.set(downloads_key(neuron), encode_cache_report(report(neuron, **changes)))

    return publish_report


@pytest.fixture
def beast(publish) -> Neuron:
    services.heartbeat_record(heartbeat=publish())
    return Neuron.objects.get()


def start(**changes: Any) -> Download:
    return services.download_start(
        **{"actor": COMMAND, "source": SOURCE, "neuron_name": "beast"} | changes
    )


def state(download: Download, status: str, **changes: Any) -> CacheJobState:
    return CacheJobState(
        job_id=str(download.pk),
        kind="pull",
        source=download.source,
        status=CacheJobStatus(status),
        since_unix_s=1e9,
        **changes,
    )


def bytes_of(done: int, total: int) -> LoadProgress:
    return LoadProgress(stage=LoadStage.DOWNLOADING, done=done, total=total, detail="a.gguf")
