"""Fixtures that several parts share, how a run is spread over processes, and the check that no
process outlives it."""

from __future__ import annotations

import gc
import os
import re
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import django.conf
import hypothesis
import psutil
import pytest
import redis
from pytest_django.plugin import DjangoDbBlocker
from xdist.remote import Producer

from helexa_site.bootstrap.suite import MODEL_CACHE_DIR, fetch_default_model
from helexa_site.program import default_data_dir
from inference import supervised_threads
from inference.sandbox.pool import WorkerPool
from tests.embedding_model import fetch_embedding_model
from tests.leftovers import leftovers, mark_this_run
from tests.migrated_database import MakeSqlite, MigratedDatabase, migrated_database
from tests.processes import command_line
from tests.sandbox_workers import WORKERS
from tests.servers.private_postgres import running_postgres
from tests.servers.private_redis import running_redis
from tests.spreading import SpreadByServer, check_servers, turn
from tests.time_limit import (  # noqa: F401 - hooks
    pytest_runtest_call,
    pytest_runtest_setup,
    pytest_runtest_teardown,
)

SLOW_MODULE = re.compile(r"^pytestmark = (\[[^\]]*)?pytest\.mark\.slow\b", re.MULTILINE)


def has_cuda() -> bool:
    if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg")):
        return False  # without the seconds that torch takes to import
    import torch  # after its threads' setting

    return torch.cuda.is_available()


mark_this_run()
# Before torch is imported, here and in engines: its threads wait asleep. Where cores are shared, as
# they are among tests, threads that spin while they wait take most of an engine's start.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Servers of tests share the machine, which has one port for metrics.
os.environ.setdefault("HELEXA_METRICS_LISTEN", "off")
if not has_cuda():
    # Before Triton is imported, which parts of torch do: kernels then run interpreted.
    os.environ["TRITON_INTERPRET"] = "1"
# How long an example takes depends on how busy the machine is. The suite tries the same examples
# each time, so that it never fails by chance; scripts/nightly, with the long profile, others.
for profile, num_examples in (("suite", 40), ("long", 120)):
    hypothesis.settings.register_profile(
        profile,
        deadline=None,
        derandomize=profile == "suite",
        max_examples=num_examples,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("suite")
# As slow to guess as a password has to be is half a second for every user that a test makes.
django.conf.settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# Static files are looked for when they are asked for: every client that a test makes would look
# for all of them beforehand.
django.conf.settings.WHITENOISE_AUTOREFRESH = True


@pytest.fixture(autouse=True)
def _own_thread_problems() -> Iterator[None]:
    """What broke in one test on purpose is no problem of the next one's, in the same process."""
    yield
    supervised_threads._records.clear()


def is_one_of_several(config: pytest.Config) -> bool:
    """Whether this process runs a part of the tests for another one (pytest-xdist)."""
    return hasattr(config, "workerinput")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests are left out, modules of those alone are not even imported."""
    if config.getoption("markexpr") != "not slow" or collection_path.suffix != ".py":
        return None
    return True if SLOW_MODULE.search(collection_path.read_text()) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imported modules and collected tests stay until the end: some million objects, which each
    full collection of the garbage collector would look through."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    check_servers(items)
    items.sort(key=turn)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SpreadByServer | None:
    return SpreadByServer(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def sandbox_workers() -> Iterator[WorkerPool]:
    yield WORKERS
    WORKERS.close_for_good()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that leaves a process behind has failed, whatever its tests found. Of several processes
    that share a run, the one that started the others looks, when they are gone."""
    if is_one_of_several(session.config):
        return
    for process in leftovers():
        print(f"\nleft behind: {process.pid} {' '.join(command_line(process))}")
        with suppress(psutil.NoSuchProcess):
            process.kill()
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def django_db_setup(
    request: pytest.FixtureRequest,
    django_test_environment: None,
    django_db_blocker: DjangoDbBlocker,
    django_db_modify_db_settings: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MigratedDatabase | None]:
    """Stands in the place of pytest-django's, which makes no database where no test of the run uses
    it itself. What a test commits is undone at little cost, where the database is in memory."""
    config = request.config
    common_dir = tmp_path_factory.getbasetemp().parent if is_one_of_several(config) else None
    with ExitStack() as at_the_end:
        with django_db_blocker.unblock():
            migrated = at_the_end.enter_context(migrated_database(config, common_dir))
        if migrated is not None:
            at_the_end.enter_context(migrated.restored_after_tests())
        yield migrated
        with django_db_blocker.unblock():
            at_the_end.close()


@pytest.fixture(scope="session")
def make_sqlite(
    django_db_setup: MigratedDatabase,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> MakeSqlite:
    """Makes a SQLite file with every migration and what a function writes. Processes that start on
    it save the seconds that migrating takes."""

    def make(write: Callable[[], object] = lambda: None) -> Path:
        path = tmp_path_factory.mktemp("migrated") / "helexa.sqlite3"
        with django_db_blocker.unblock():
            django_db_setup.save_with(write, path)
        return path

    return make


@pytest.fixture(scope="session")
def migrated_sqlite(make_sqlite: MakeSqlite) -> Path:
    """Makes a database with nothing but the migrations' rows, to be copied."""
    return make_sqlite()


@pytest.fixture(scope="session", autouse=True)
def apart_from_live_servers() -> None:
    """Django has read the settings that ``tests/isolation.py`` made. A pytest that a test runs may
    have a data directory and a database of that test."""
    config = django.conf.settings.CONFIG
    assert re.fullmatch(r"unix://.*/helexa-tests-[^/]+/no-redis\.sock", config.redis_url)
    for named in (str(config.data_dir), config.database_url):
        assert str(default_data_dir().resolve()) not in named, "it is a live server's"


@pytest.fixture(scope="session")
def redis_server_url() -> Iterator[str]:
    """A Redis of this test run's own, on its own unix socket."""
    with tempfile.TemporaryDirectory(prefix="helexa-test-") as run_dir:
        with running_redis(Path(run_dir)) as url, redis.Redis.from_url(url) as client:
            server: dict[str, Any] = client.info("server")
            assert Path(server["config_file"]).parent.samefile(run_dir), "it is another run's"
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


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def native_cache_dir() -> Path:
    """Where the native decoder is compiled by the first test or engine that needs it, for all and
    for later runs: a library's name has its source's hash, its compiler and its CPU."""
    compiled_dir = MODEL_CACHE_DIR.parent / "native"
    compiled_dir.mkdir(parents=True, exist_ok=True)
    return compiled_dir


@pytest.fixture(scope="session")
def model_cache_dir() -> Path:
    """Where the default model is kept between runs; holds it once ``default_gguf`` was asked."""
    MODEL_CACHE_DIR.mkdir(parents=True, exist_ok=True)
    return MODEL_CACHE_DIR


@pytest.fixture(scope="session")
def default_gguf(model_cache_dir: Path) -> Path:
    """SmolLM2-135M-Instruct Q4_1, whole and checked."""
    return fetch_default_model()


@pytest.fixture(scope="session")
def gemma_gguf(model_cache_dir: Path) -> Path:
    """Gemma 3 270M Q4_K_M, whole and checked: a base model without a chat template, for slow
    tests."""
    from benchmarks.gguf_files import fetch_gemma  # imports what few runs need

    return fetch_gemma(model_cache_dir)


@pytest.fixture(scope="session")
def embedding_model_dir(model_cache_dir: Path) -> Path:
    """all-MiniLM-L6-v2 as a directory, whole and checked."""
    return fetch_embedding_model()
