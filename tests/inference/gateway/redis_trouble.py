"""Fixtures of tests whose Redis stops, dies and comes back: a gateway that notices quickly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helexa_site.config import Config
from inference.gateway import gateway
from inference.gateway.redis import event_reader
from tests.private_redis import MortalRedis, mortal_redis

COMMAND_TIMEOUT_S = 0.3


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MortalRedis]:
    run_dir: Path = tmp_path_factory.mktemp("r")
    with mortal_redis(run_dir) as server:
        yield server


@pytest.fixture
def redis_url(mortal: MortalRedis) -> str:
    return mortal.url


@pytest.fixture
def stall_limit_s() -> int:
    """Overridden where a stall is to be over it."""
    return 30


@pytest.fixture
def config(config: Config, stall_limit_s: int, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(gateway, "COMMAND_TIMEOUT_S", COMMAND_TIMEOUT_S)
    monkeypatch.setattr(gateway, "READ_TIMEOUT_S", COMMAND_TIMEOUT_S)
    monkeypatch.setattr(event_reader, "BLOCK_MS", int(1000 * COMMAND_TIMEOUT_S / 2))
    return replace(config, redis_stall_s=stall_limit_s)
