"""``manage.py test``: isolates the run from every server of this machine, then runs pytest.

The run gets none of helexa's settings, a new data directory, and a Redis address at which nothing
listens: else a process would find the private Redis of a ``serve`` of the same checkout, or the one
on Redis' usual port.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from helexa_site.bootstrap.console import print_step
from helexa_site.program import REPOSITORY_DIR
from inference.loading.host import host_memory
from inference.loading.sources.sources import fetch_files
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import LoadError
from inference.settings.storage import DATA_DIR, DATABASE_URL, REDIS_URL
from inference.settings.table import OF_TESTS, PREFIX

MODEL_CACHE_DIR = REPOSITORY_DIR / "var" / "test-cache" / "models"

ISOLATED_BY = "HELEXA_TEST_ISOLATED_BY"
COVERAGE = "--cov"
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
ROOM_FOR_THREE_BYTES = 9 * 2**30
"""Three processes keep two cores busy, because some wait for servers while others compute. Each
needs 3 GiB with its servers and engines, imports torch and collects all tests: more take longer."""


def run_suite(arguments: list[str]) -> int:
    isolate(os.environ)
    try:
        print_step("model", f"the default model is at {fetch_default_model()}")
    except LoadError as error:
        # Not fatal: tests without a model can run, and the others report the same error.
        print_step("model", f"not available: {error}")
    # Containers often forbid Python to write bytecode. Hundreds of processes that tests start would
    # then compile helexa again.
    environment = {key: value for key, value in os.environ.items() if key != NO_BYTECODE}
    command = [sys.executable, "-m", "pytest", *spreading(arguments), *coverage_last(arguments)]
    with subprocess.Popen(command, cwd=REPOSITORY_DIR, env=environment) as pytest:
        # Ctrl-C reaches pytest as well, which then prints its summary.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: pytest.terminate())
        return pytest.wait()


def spreading(arguments: list[str]) -> list[str]:
    """``-n0`` among the arguments, which come after, overrides it."""
    if any(_names_a_file(argument) for argument in arguments):
        return []
    # In the order of collection: the tests' conftest puts slow ones first.
    count = "3" if host_memory().free_bytes >= ROOM_FOR_THREE_BYTES else "2"
    return ["-n", count, "--dist", "loadfile", "--no-loadscope-reorder"]


def coverage_last(arguments: list[str]) -> list[str]:
    """pytest takes a word after ``--cov`` as the folder to measure: last, it has none."""
    others = [argument for argument in arguments if argument != COVERAGE]
    return [*others, COVERAGE] if COVERAGE in arguments else others


def _names_a_file(argument: str) -> bool:
    return (REPOSITORY_DIR / argument.partition("::")[0]).is_file()


def fetch_default_model() -> Path:
    """Raises ``LoadError``."""
    spec = default_model_spec()
    files = fetch_files(spec, MODEL_CACHE_DIR, sys.maxsize, lambda progress: None)
    return files.weights[0]


def default_model_spec() -> LoadSpec:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "helexa_site.settings")
    import django

    django.setup()
    from fleet.services import catalogue

    return LoadSpec(
        job_id="test",
        model=catalogue.DEFAULT_MODEL_NAME,
        source=catalogue.DEFAULT_MODEL_SOURCE,
        revision=catalogue.DEFAULT_MODEL_REVISION,
        sha256=catalogue.DEFAULT_MODEL_SHA256,
    )


def isolate(environment: MutableMapping[str, str]) -> None:
    made = environment.get(ISOLATED_BY, "")
    if made and environment.get(DATA_DIR.name) == f"{made}/var" and Path(made).is_dir():
        return
    for name in [name for name in environment if name.startswith(PREFIX)]:
        if not name.startswith(tuple(OF_TESTS)):
            del environment[name]
    environment.pop(DATABASE_URL.name, None)
    run_dir = Path(tempfile.mkdtemp(prefix="helexa-tests-"))
    atexit.register(_remove, run_dir, os.getpid())
    environment[ISOLATED_BY] = str(run_dir)
    environment[DATA_DIR.name] = str(run_dir / "var")
    environment[REDIS_URL.name] = f"unix://{run_dir}/no-redis.sock"


def _remove(run_dir: Path, process_id: int) -> None:
    if os.getpid() == process_id:  # a fork of this process inherits the call
        shutil.rmtree(run_dir, ignore_errors=True)
