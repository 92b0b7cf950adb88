"""The private Redis starts, wants its password, keeps nothing, and leaves nothing behind."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import redis

from helexa_site.bootstrap import redis_server
from helexa_site.bootstrap.errors import BootstrapError
from helexa_site.bootstrap.redis_server import (
    MAX_SOCKET_PATH_BYTES,
    configure_private_redis,
    find_redis_server,
    wait_for_redis,
)
from tests.cases import each_case
from tests.servers.private_redis import running_redis

pytestmark = pytest.mark.slow


def test_it_is_private_and_leaves_no_socket(tmp_path: Path) -> None:
    """A stale socket of an earlier run is replaced."""
    (tmp_path / "redis.sock").touch()
    with running_redis(tmp_path) as url, redis.Redis.from_url(url) as client:
        client.set("key", "value")
        assert client.get("key") == b"value"
        # A client that does not read its answers takes no more memory than that.
        assert client.config_get("maxmemory-clients") == {"maxmemory-clients": str(24 << 20)}
        with pytest.raises(BootstrapError, match="authenticate"):
            wait_for_redis("unix://" + url.partition("@")[2])
    assert {file.name for file in tmp_path.iterdir()} == {"redis.conf", "redis.log"}
    assert stat.S_IMODE((tmp_path / "redis.conf").stat().st_mode) == 0o600


@each_case(
    ("version_output", "is_limited"),
    [("Redis server v=7.0.15 sha=0", True), ("v=6.2.1", False), ("", False)],
)
def test_an_older_server_gets_no_directive_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version_output: str, is_limited: bool
) -> None:
    binary = tmp_path / "redis-server"
    binary.write_text(f"#!/bin/sh\necho '{version_output}'\n")
    binary.chmod(0o700)
    monkeypatch.setattr(redis_server, "find_redis_server", lambda: binary)
    configure_private_redis(tmp_path)
    assert ("maxmemory-clients" in (tmp_path / "redis.conf").read_text()) is is_limited


@each_case("name", ["x" * MAX_SOCKET_PATH_BYTES, "with space & ünïcode #1"])
def test_awkward_directories_get_a_socket_elsewhere(tmp_path: Path, name: str) -> None:
    run_dir = tmp_path / name
    with running_redis(run_dir) as url, redis.Redis.from_url(url) as client:
        assert client.ping()
        socket_dir = Path(url.partition("@")[2].partition("?")[0]).parent
        assert socket_dir != run_dir
    assert not socket_dir.exists()


def test_a_server_that_dies_or_is_not_there_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = iter([True])
    with pytest.raises(BootstrapError, match=r"does not answer: .*No such file"):
        wait_for_redis(f"unix://{tmp_path}/none.sock", is_alive=lambda: next(lives, False))
    with pytest.raises(BootstrapError, match="REDIS_URL is not the address"):
        wait_for_redis("http://redis")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(redis_server, "WHEEL", "no-such-distribution")
    with pytest.raises(BootstrapError, match="set REDIS_URL"):
        find_redis_server()
    valkey = tmp_path / "valkey-server"
    valkey.touch(mode=0o755)
    assert find_redis_server() == valkey
