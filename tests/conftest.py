"""Fixtures that several parts share: a private Redis, the default model's files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from helexa_site.bootstrap.redis_server import running_redis


@pytest.fixture(scope="session")
def redis_server_url() -> Iterator[str]:
    """A Redis of this test run's own, on its own unix socket."""
    with (
        tempfile.TemporaryDirectory(prefix="helexa-test-") as run_dir,
        running_redis(Path(run_dir)) as url,
    ):
        yield url


@pytest.fixture
def redis_url(redis_server_url: str) -> str:
    """The URL of an empty Redis: whatever an earlier test left is gone."""
    with redis.Redis.from_url(redis_server_url) as client:
        client.flushall()
    return redis_server_url


@pytest.fixture
def redis_db(redis_url: str) -> Iterator[redis.Redis]:
    """A client of an empty Redis; replies are bytes."""
    with redis.Redis.from_url(redis_url) as client:
        yield client
