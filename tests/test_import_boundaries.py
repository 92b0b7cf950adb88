"""Who may import what: the table in the architecture, enforced.

Two ways of looking: the import statements of every file, and, because an innocent import can drag
in the forbidden one, an interpreter in which the forbidden packages seem not to be installed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

REPOSITORY_DIR = Path(__file__).resolve().parent.parent
PACKAGES = ("helexa_site", "fleet", "inference", "metering")
"""The packages installed on hosts. Benchmarks measure these, and none of them knows benchmarks."""


@dataclass(frozen=True, slots=True)
class Boundary:
    part: str
    """A package directory or one file."""
    forbidden: tuple[str, ...]
    allowed: frozenset[tuple[str, str]] = frozenset()
    """(file, package): exceptions, each with its reason beside it."""

    def __str__(self) -> str:
        return f"{self.part} without {self.forbidden[0]}"


DJANGO = ("django", "channels", "daphne", "rest_framework", "fleet", "helexa_site", "metering")
OUTSIDE = (*DJANGO, "torch", "transformers", "celery", "redis", "msgspec", "psutil")
"""Packages that are missing before anything is installed."""
SERVICES = ("django", "redis", "celery")
ENGINES = ("torch", "transformers", "inference.neuron", "inference.engine")
BACKENDS = (
    "inference.models.decoder",
    "inference.models.graphed",
    "inference.models.native.model",
    "inference.models.transformers_backend.model",
    "inference.models.transformers_backend.cached_model",
)
"""What computes a model. ``inference.models.backend`` is all that the engine knows of them."""
BOUNDARIES = (
    Boundary("inference/engine", (*DJANGO, "celery", "redis", "transformers")),
    Boundary(
        "inference/engine",
        BACKENDS,
        # Ranks run the torch decoder themselves.
        frozenset(
            (f"inference/engine/divided/{file}.py", "inference.models.decoder")
            for file in ("rank_follower", "ranked_model")
        ),
    ),
    Boundary("inference/loading", BACKENDS),
    Boundary(
        "inference/models",
        (*DJANGO, "celery", "redis", "transformers", "inference.loading"),
        # Encoders, and decoders that no family here computes, are run by transformers itself.
        frozenset(
            (file, "transformers")
            for file in (
                "inference/models/embedding.py",
                "inference/models/transformers_backend/cached_model.py",
                "inference/models/transformers_backend/detection.py",
                "inference/models/transformers_backend/hub_module.py",
                "inference/models/transformers_backend/inspection.py",
                "inference/models/transformers_backend/model.py",
                "inference/models/transformers_backend/storage.py",
            )
        ),
    ),
    Boundary("inference/models/families", ("torch", "numpy", "gguf")),
    Boundary("inference/loading", (*DJANGO, "celery", "redis")),
    Boundary("inference/wire", (*DJANGO, "torch", "transformers", "celery", "redis", "asyncio")),
    Boundary("inference/text", (*DJANGO, "torch", "celery", "redis")),
    Boundary("inference/sandbox", (*DJANGO, "torch", "celery", "redis", "inference.neuron")),
    Boundary("inference/protocol", (*DJANGO, "torch", "transformers", "celery", "redis")),
    *(
        Boundary(f"inference/{name}", OUTSIDE)
        for name in (
            *("settings", "backoff.py", "channel.py", "environment.py", "logs.py", "proxies.py"),
            *("recent_results.py", "redaction.py", "request_ids.py"),
        )
    ),
    Boundary("inference/neuron", (*DJANGO, "torch", "inference.models", "inference.gateway")),
    Boundary(
        "inference/gateway", ("torch", "transformers", "inference.neuron", "inference.models")
    ),
    *(
        Boundary(f"inference/{name}", (*ENGINES, "inference.gateway"))
        for name in ("conversations", "batches")
    ),
    *(Boundary(package, ENGINES) for package in ("fleet", "helexa_site", "metering")),
    *(
        Boundary(f"fleet/{name}", (*SERVICES, "torch", "time", "asyncio", "logging"))
        for name in ("placement", "catalogue", "live/snapshot.py")
    ),
    *(
        Boundary(f"metering/{name}.py", (*SERVICES, "fleet", "helexa_site"))
        for name in ("errors", "money", "principal", "ledger/book", "ledger/entries")
    ),
    Boundary("metering/bench/measures.py", (*SERVICES, "fleet", "helexa_site", "urllib", "http")),
    # Installed alone, beside an editor: nothing of helexa is there.
    Boundary(
        "acp/helexa_acp",
        (*(name for name in OUTSIDE if name != "msgspec"), "inference", "benchmarks", "tests"),
    ),
    *(
        Boundary(f"inference/engine/{name}.py", ("torch", "numpy"))
        for name in (
            *("engine", "kv_cache", "pace", "run_ahead", "scheduler", "state_slots", "step"),
            "waiting_queue",
        )
    ),
    *(
        Boundary(
            package,
            ("opentelemetry",),
            # Imported where a collector is named, and only then.
            frozenset({("inference/gateway/tracing.py", "opentelemetry")}),
        )
        for package in PACKAGES
    ),
    *(Boundary(package, ("benchmarks", "tests", "helexa_acp")) for package in PACKAGES),
)
CELERY_FILES = {
    "fleet/neuron_client.py",
    "fleet/tasks.py",
    "helexa_site/celery.py",
    "inference/conversations/tasks.py",
    "inference/neuron/neuron_process.py",
    "metering/tasks.py",
}
"""The only files that know Celery."""

BARE_IMPORTS = {
    "neuron": (
        ("inference.neuron.neuron_process",),
        ("django", "channels", "torch", "transformers", "llguidance", "fleet", "numpy"),
    ),
    "gateway and control": (
        (
            *("helexa_site.celery", "helexa_site.asgi"),  # the last sets Django up
            *("inference.gateway.server.run", "fleet.tasks", "metering.tasks"),
        ),
        ("torch", "transformers", "inference.engine", "opentelemetry", "numpy"),
    ),
    "engine": (
        ("inference.engine.process",),
        ("django", "channels", "celery", "redis", "fleet", "transformers", "huggingface_hub"),
    ),
    "sandbox": (
        ("inference.sandbox.fork_server",),
        ("django", "channels", "torch", "transformers", "celery", "redis", "fleet", "psutil"),
    ),
    "bootstrap": (
        ("helexa_site.bootstrap.commands", "inference.neuron.__main__"),
        ("django", "redis", "msgspec", "celery", "torch", "psutil"),
    ),
}
"""Modules, imported by one process in this order, and what they do without."""
BARE_IMPORT = """
import importlib, sys
modules, forbidden = (words.split(",") for words in sys.argv[1:])
sys.modules.update(dict.fromkeys(forbidden))
for module in modules:
    importlib.import_module(module)
"""
"""``None`` in ``sys.modules`` makes a package look as if it were not installed."""


def python_files(part: str) -> Iterator[Path]:
    path = REPOSITORY_DIR / part
    if path.is_file():
        yield path
    else:
        found = sorted(path.rglob("*.py"))
        assert found, f"{part} holds no Python: the table is out of date"
        yield from found


@cache
def imported_names(file: Path) -> tuple[tuple[int, str], ...]:
    """Line and absolute dotted name of each import, wherever in the file it stands."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import hides its package"
            names = (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
            found += [(node.lineno, name) for name in names if name]
    return tuple(found)


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def violations(boundary: Boundary) -> Iterator[str]:
    for file in python_files(boundary.part):
        path = file.relative_to(REPOSITORY_DIR).as_posix()
        for line, name in imported_names(file):
            for forbidden in boundary.forbidden:
                if is_within(name, forbidden) and (path, forbidden) not in boundary.allowed:
                    yield f"{path}:{line} imports {name}"


@pytest.mark.parametrize("boundary", BOUNDARIES, ids=str)
def test_boundary(boundary: Boundary) -> None:
    assert not list(violations(boundary))


def test_only_tasks_know_celery() -> None:
    knowing = {
        str(file.relative_to(REPOSITORY_DIR))
        for package in PACKAGES
        for file in python_files(package)
        for _, name in imported_names(file)
        if is_within(name, "celery") or is_within(name, "kombu")
    }
    assert knowing <= CELERY_FILES


def printed_by(code: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=REPOSITORY_DIR, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("part", BARE_IMPORTS)
def test_bare_import(part: str) -> None:
    words = [",".join(names) for names in BARE_IMPORTS[part]]
    printed_by(BARE_IMPORT, *words)


CONTROL = """
from helexa_site import control
import sys

control.celery.app.loader.import_default_modules()
assert "fleet.tasks" in sys.modules
print(*sys.modules)
"""


def test_a_control_imports_no_page_and_no_api() -> None:
    unwanted = (
        *("unfold.admin", "rest_framework.views", "drf_spectacular.openapi", "helexa_site.urls"),
        *("inference.wire", "inference.gateway", "numpy", "rich", "celery.bin"),
    )
    assert not {*unwanted} & {*printed_by(CONTROL).split()}
