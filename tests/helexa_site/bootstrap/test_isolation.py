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
LIVE_MARK = "the mark of a live server"
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
    report = {"environment": dict(os.environ), "data_dir": str(settings.CONFIG.data_dir)}
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
    checkout, elsewhere = (tmp_path_factory.mktemp(name) for name in ("checkout", "elsewhere"))
    for name in PACKAGES:
        shutil.copytree(REPOSITORY_DIR / name, checkout / name)  # with its bytecode
    for pattern in FILES:
        for path in REPOSITORY_DIR.glob(pattern):
            (checkout / path.relative_to(REPOSITORY_DIR)).parent.mkdir(exist_ok=True)
            shutil.copy2(path, checkout / path.relative_to(REPOSITORY_DIR))
    (checkout / "acp").mkdir()
    (checkout / "tests" / "test_probe.py").write_text(PROBE)
    redis_dir = checkout / "var" / "redis"
    redis_dir.mkdir(parents=True)
    databases = (checkout / "var" / "helexa.sqlite3", elsewhere / "live.sqlite3")
    for path in databases:
        with sqlite3.connect(path) as database:
            database.execute("create table live (one)")
    with running_redis(redis_dir) as first, running_redis(elsewhere) as second:
        for url in (first, second):
            with redis.Redis.from_url(url) as client:
                client.set("live", "yes")
        odd = {name: "odd" for name in NAMES if name.startswith("HELEXA_")}
        hostile = odd | {
            "REDIS_URL": second,
            "DATABASE_URL": f"sqlite:///{databases[1]}",
            "HELEXA_DATA_DIR": str(elsewhere),
            "HELEXA_SECRET_KEY": "of a live server, and long enough",
            "HELEXA_TEST_RUN": LIVE_MARK,
            "HELEXA_TEST_ISOLATED_BY": "1",
            "HELEXA_COLOUR": "odd",
        }
        yield Live(checkout, (first, second), databases, hostile)


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
    environment |= live.environment if is_hostile else {}
    before = set(live.checkout.glob("var/*"))
    done = subprocess.run(
        [sys.executable, *command, "-q", "-p", "no:cacheprovider", "tests/test_probe.py"],
        cwd=live.checkout,
        env=environment | {"PROBE_REPORT": str(tmp_path / "report"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for url in live.redis_urls:
        with redis.Redis.from_url(url) as client:
            assert client.get("live") == b"yes"
    for path in live.databases:
        with sqlite3.connect(path) as database:
            tables = database.execute("select name from sqlite_master").fetchall()
        assert tables == [("live",)]
    (path,) = tmp_path.iterdir()
    report: dict[str, Any] = json.loads(path.read_text())
    run_dir = Path(report["data_dir"]).parent
    assert not run_dir.exists(), "the run has left its directory behind"
    assert not run_dir.is_relative_to(live.checkout)
    given = {name for name in report["environment"] if name in NAMES or "HELEXA" in name}
    wanted = {"HELEXA_DATA_DIR", "REDIS_URL", "HELEXA_METRICS_LISTEN", "HF_HUB_OFFLINE"}
    assert given - {"HELEXA_TEST_RUN", "HELEXA_TEST_ISOLATED_BY", "CXX", "HF_HOME"} == wanted
    assert report["environment"]["HELEXA_TEST_RUN"] != LIVE_MARK
    assert set(live.checkout.glob("var/*")) - before <= {live.checkout / "var" / "test-cache"}
