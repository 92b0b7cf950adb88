"""One compile of the tree for all processes of a run. In a fresh clone each of them would compile
every module, rewrite every test's assertions and read every module's constants for Hypothesis: the
same seconds in each, at the same time. So each process does a part and leaves it in the caches that
Python, pytest and Hypothesis keep anyway, where the others find it.

No process waits for another: what it needs before it is there, it makes itself.
"""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from _pytest.assertion import rewrite
from hypothesis.internal.constants_ast import constants_from_module

REPOSITORY_DIR = Path(__file__).resolve().parent.parent
TESTS = "tests"
PACKAGES = ("acp", "benchmarks", "fleet", "helexa_site", "inference", "metering", TESTS)


def compile_part(config: pytest.Config, part: int, num_parts: int) -> None:
    """Compiles every ``num_parts``-th file of the tree, beginning with the file at ``part``, unless
    it is compiled already. Does nothing where Python may not keep bytecode."""
    if sys.dont_write_bytecode:
        return
    for file in source_files()[part::num_parts]:
        try:
            _compile(config, file)
        except SyntaxError:
            continue  # the test that imports it reports it


def source_files() -> list[Path]:
    """The Python files of the tree, in the same order for each process."""
    return sorted(file for name in PACKAGES for file in (REPOSITORY_DIR / name).rglob("*.py"))


def _compile(config: pytest.Config, file: Path) -> None:
    if file.match("test_*.py") or file.name == "conftest.py":
        keep_rewritten(config, file)
        return
    SourceFileLoader(file.stem, str(file)).get_code(file.stem)
    if file.relative_to(REPOSITORY_DIR).parts[0] != TESTS:
        keep_constants(file)


def keep_rewritten(config: pytest.Config, file: Path) -> None:
    kept = rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)
    if rewrite._read_pyc(file, kept) is None and rewrite.try_makedirs(kept.parent):
        source_hash, code = rewrite._rewrite_test(file, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, kept)


def keep_constants(file: Path) -> None:
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    constants_from_module(module)
