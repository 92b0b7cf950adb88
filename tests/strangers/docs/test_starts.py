"""Blocks that start something: the first start, a second host, the processes one by one, and those
of backup and restore, on a data directory with something in it."""

from __future__ import annotations

import re
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from benchmarks.ports import free_port
from tests.live.conftest import with_caches
from tests.live.serving import REPOSITORY_DIR, wait_until
from tests.servers.private_postgres import running_postgres
from tests.strangers.docs.blocks import commands_of
from tests.strangers.docs.newcomer import Newcomer, blocks_for, linked_checkout

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(600)]

SERVE = "python3 manage.py serve"
SECRET_KEY = "one key for the gateway and the control of this test"


def reader(folder: Path, rewrites: dict[str, str], data_dir: Path, **environment: str) -> Newcomer:
    """A newcomer in a checkout at ``folder``."""
    checkout = folder if folder.exists() else linked_checkout(folder)
    given = {"HELEXA_DATA_DIR": str(data_dir)} | environment
    return Newcomer(checkout, rewrites=rewrites, environment=given)


@pytest.mark.skipif(
    not (REPOSITORY_DIR / ".git").exists(), reason="a clone is made of a git checkout"
)
def test_a_clone_starts_and_prints_what_the_readme_shows(
    tmp_path: Path, model_cache_dir: Path, native_cache_dir: Path, default_gguf: Path
) -> None:
    """It uses this environment: .ci/first-start makes a new one."""
    start, shown = blocks_for("first-start")
    port = free_port()
    data_dir = with_caches(tmp_path / "var", model_cache_dir, native_cache_dir)
    rewrites = {"<this repository>": str(REPOSITORY_DIR), "31313": str(port)}
    newcomer = reader(tmp_path, rewrites, data_dir, HELEXA_VENV=sys.prefix)
    clone, serve = newcomer.text_of(start).strip().splitlines()
    assert serve == SERVE
    newcomer.run(clone)
    with newcomer.running(f"cd helexa && {serve} --port {port}", "serve") as running:
        running.wait_for("try  ")
        printed = [" ".join(line.split()) for line in running.output.splitlines()]
        for line in newcomer.text_of(shown).splitlines():
            beginning = " ".join(line.partition("…")[0].split())
            assert any(one.startswith(beginning) for one in printed), (line, printed)


@pytest.mark.parametrize("page", ["README.md", "docs/operating/hosts.md"])
def test_an_invited_host_joins(page: str, tmp_path: Path) -> None:
    invite, join = blocks_for("two-hosts", page)
    port, share = free_port(), free_port()
    rewrites = {
        SERVE: f"{SERVE} --no-model --no-neuron --port {port}",
        "--host 0.0.0.0": "--host 127.0.0.1",
        "10.0.0.5:31315": f"127.0.0.1:{share}",
    }
    first = reader(tmp_path / "first", rewrites, tmp_path / "first-data")
    serve, invitation = map(first.text_of, commands_of(invite))
    with first.running(serve, "serve") as serving:
        serving.wait_for("ready: ")
        line = first.run(invitation).strip()
        joining = line.removeprefix("python3 manage.py neuron --join ")
        second = reader(tmp_path / "second", {"hx1.…": joining}, tmp_path / "second-data")
        (joined,) = commands_of(join)
        assert second.text_of(joined) == line
        with second.running(line, "neuron"):
            wait_until(
                lambda: "online" in first.run("python3 manage.py neurons list"), "beast is online"
            )


def test_serve_on_a_postgres_and_a_redis_of_ones_own(tmp_path: Path, redis_url: str) -> None:
    (block,) = blocks_for("own-databases")
    port = free_port()
    with running_postgres() as database_url:
        rewrites = {
            "postgres://helexa:…@db/helexa": database_url,
            "redis://:password@redis:6379/0": redis_url,
            "--host 0.0.0.0": f"--port {port}",
        }
        newcomer = reader(tmp_path / "helexa", rewrites, tmp_path / "data")
        export, serve = map(newcomer.text_of, commands_of(block))
        assert export.startswith("export ")
        variables = dict(word.split("=", 1) for word in export.split()[1:])
        with newcomer.running(serve, "serve", **variables) as running:
            running.wait_for("ready: ")
            assert "database    ready (postgresql)" in running.output
            assert "the one in REDIS_URL answers" in running.output


def test_the_processes_one_by_one(tmp_path: Path, redis_url: str, migrated_sqlite: Path) -> None:
    (block,) = blocks_for("processes")
    port = free_port()
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    shutil.copy(migrated_sqlite, data_dir)
    shared = {"HELEXA_SECRET_KEY": SECRET_KEY, "REDIS_URL": redis_url}
    rewrites = {"--host 0.0.0.0 --port 31313": f"--port {port}"}
    shared["HELEXA_METRICS_LISTEN"] = "off"
    newcomer = reader(tmp_path / "helexa", rewrites, data_dir, **shared)
    migrate, *processes = map(newcomer.text_of, commands_of(block))
    newcomer.run(migrate)
    with ExitStack() as running:
        for number, command in enumerate(processes):
            running.enter_context(newcomer.running(command, f"process-{number}"))
        wait_until(
            lambda: httpx.get(f"http://127.0.0.1:{port}/health", timeout=30.0).json()["status"],
            "the gateway answers",
        )
        listed = "python3 manage.py neurons list"
        wait_until(
            lambda: re.search("beast.*online", newcomer.run(listed)),
            "the control has seen the neuron",
        )


def test_a_backup_is_made_checked_and_restored(tmp_path: Path, migrated_sqlite: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    shutil.copy(migrated_sqlite, data_dir / "helexa.sqlite3")
    (data_dir / "secret_key").write_text("a secret key of this test, long enough to be one")
    file = tmp_path / "helexa.tar.gz"
    backup, restore = blocks_for("backup")

    def on(data_dir: Path) -> Newcomer:
        return reader(tmp_path / "helexa", {"/srv/backups/helexa.tar.gz": str(file)}, data_dir)

    on(data_dir).run("python3 manage.py accounts create kept")
    on(data_dir).paste(backup)
    assert file.stat().st_mode & 0o077 == 0
    elsewhere = on(tmp_path / "elsewhere")
    elsewhere.paste(restore)
    assert "kept" in elsewhere.run("python3 manage.py accounts list")
