"""Tests never reach a live server, whatever the environment has and whatever runs.

A copy of the checkout has a live server's Redis and database in its data directory, and another
Redis and another database stand in the environment, beside an odd value of every setting.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from helexa_site.program import REPOSITORY_DIR
from inference.settings.table import NAMES
from tests.servers.private_redis import running_redis

pytestmark = pytest.mark.slow

PACKAGES = ("helexa_site", "fleet", "inference", "metering", "templates")
FILES = (
    "manage.py",
    "pyproject.toml",
    "requirements*.txt",
    "*.lock",
    "tests/*.py",
    "tests/servers/*.py",
)
TIMEOUT_S = 600
SUITE = """
import sys
from helexa_site.bootstrap.suite import run_suite
sys.exit(run_suite(sys.argv[1:]))
"""
"""``manage.py test`` once its environment is made, whatever is installed here."""
PROBE = '''
import json, os
from pathlib import Path

import pytest
import redis
from django.conf import settings
from django.db import connection


class WithoutMigrations:
    """Tables are made as the models have them: migrating takes most of the run, and writes to the
    same database."""

    def __contains__(self, app: str) -> bool:
        return True

    def __getitem__(self, app: str) -> None:
        return None


settings.MIGRATION_MODULES = WithoutMigrations()


def test_what_a_test_reaches(redis_url: str, transactional_db: None) -> None:
    """Empties all that it reaches by its settings, as tests do."""
    report = {
        "environment": dict(os.environ),
        "data_dir": str(settings.CONFIG.data_dir),
        "database": settings.CONFIG.database_url,
    }
    path = Path(os.environ["PROBE_REPORT"])
    path.with_name(f"{path.name}.{os.getpid()}").write_text(json.dumps(report))
    settings.CONFIG.data_dir.mkdir(parents=True, exist_ok=True)
    (settings.CONFIG.data_dir / "written").touch()
    try:
        with redis.Redis.from_url(settings.CONFIG.redis_url) as client:
            client.flushall()
    except redis.ConnectionError:
        pass


def test_another() -> None:
    """For another process of the run."""
'''


@dataclass(frozen=True)
class Live:
    checkout: Path
    redis_urls: tuple[str, ...]
    databases: tuple[Path, ...]
    environment: dict[str, str]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    checkout = tmp_path_factory.mktemp("checkout")
    for name in PACKAGES:
        shutil.copytree(REPOSITORY_DIR / name, checkout / name)  # with its bytecode
    for pattern in FILES:
        for path in REPOSITORY_DIR.glob(pattern):
            (checkout / path.relative_to(REPOSITORY_DIR)).parent.mkdir(exist_ok=True)
            shutil.copy2(path, checkout / path.relative_to(REPOSITORY_DIR))
    (checkout / "acp").mkdir()
    (checkout / "tests" / "test_probe.py").write_text(PROBE)
    data_dir = checkout / "var"
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    databases = (data_dir / "helexa.sqlite3", elsewhere / "live.sqlite3")
    with ExitStack() as running:
        (data_dir / "redis").mkdir(parents=True)
        urls = (
            running.enter_context(running_redis(data_dir / "redis")),
            running.enter_context(running_redis(elsewhere)),
        )
        for url in urls:
            with redis.Redis.from_url(url) as client:
                client.set("live", "yes")
        for path in databases:
            with sqlite3.connect(path) as database:
                database.execute("create table live (one)")
        yield Live(checkout, urls, databases, hostile(urls[1], databases[1], elsewhere))


def hostile(redis_url: str, database: Path, directory: Path) -> dict[str, str]:
    odd = {name: "odd" for name in NAMES if name.startswith("HELEXA_")}
    return odd | {
        "REDIS_URL": redis_url,
        "DATABASE_URL": f"sqlite:///{database}",
        "HELEXA_DATA_DIR": str(directory),
        "HELEXA_SECRET_KEY": "of a live server, and long enough",
        "HELEXA_TEST_RUN": "the mark of a live server",
        "HELEXA_TEST_ISOLATED_BY": "1",
        "HELEXA_COLOUR": "odd",
        "HF_HUB_OFFLINE": "1",
    }


@pytest.mark.parametrize(
    ("command", "is_hostile"),
    [
        pytest.param(("-c", SUITE), False, id="manage.py, nothing set"),
        pytest.param(("-m", "pytest", "-n", "2", "--dist", "loadfile"), True, id="pytest, hostile"),
    ],
)
def test_a_run_reaches_no_live_server(
    live: Live, command: tuple[str, ...], is_hostile: bool, tmp_path: Path
) -> None:
    names = NAMES | {"HELEXA_TEST_RUN", "HELEXA_TEST_ISOLATED_BY", "PYTEST_XDIST_WORKER"}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= live.environment if is_hostile else {"HF_HUB_OFFLINE": "1"}
    before = sorted(live.checkout.glob("var/*"))
    done = subprocess.run(
        [sys.executable, *command, "-q", "-p", "no:cacheprovider", "tests/test_probe.py"],
        cwd=live.checkout,
        env=environment | {"PROBE_REPORT": str(tmp_path / "report")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_untouched(live)
    (path,) = tmp_path.iterdir()
    report: dict[str, Any] = json.loads(path.read_text())
    run_dir = Path(report["data_dir"]).parent
    assert not run_dir.exists(), "the run has left its directory behind"
    assert not run_dir.is_relative_to(live.checkout)
    given = {name for name in report["environment"] if name in NAMES or "HELEXA" in name}
    wanted = {"HELEXA_DATA_DIR", "REDIS_URL", "HELEXA_METRICS_LISTEN", "HF_HUB_OFFLINE"}
    assert given - {"HELEXA_TEST_RUN", "HELEXA_TEST_ISOLATED_BY", "CXX", "HF_HOME"} == wanted
    assert report["environment"]["HELEXA_TEST_RUN"] != "the mark of a live server"
    assert set(live.checkout.glob("var/*")) - set(before) <= {live.checkout / "var" / "test-cache"}


def assert_untouched(live: Live) -> None:
    for url in live.redis_urls:
        with redis.Redis.from_url(url) as client:
            assert client.get("live") == b"yes"
            stats: dict[str, Any] = client.info("commandstats")
        used = {name.removeprefix("cmdstat_").partition("|")[0] for name in stats}
        assert used <= {"ping", "auth", "hello", "client", "set", "get", "info"}
    for path in live.databases:
        with sqlite3.connect(path) as database:
            tables = database.execute("select name from sqlite_master").fetchall()
        assert tables == [("live",)]
