"""What tests of models run in: the native decoder's library, and how many threads they compute
with."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from inference.models.native.library import find_compiler, load_library
from tests.inference.collected import _what_was_imported_is_not_collected  # noqa: F401 - a fixture


@pytest.fixture(scope="session")
def library(native_cache_dir: Path) -> ctypes.CDLL:
    if find_compiler() is None:
        pytest.skip("no C++ compiler")
    return load_library(native_cache_dir)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Products this small take longer to share out than to compute, above all on a busy machine."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
