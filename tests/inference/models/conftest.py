"""What the native decoder's tests share."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from inference.models.native import build


@pytest.fixture(scope="session")
def library(native_cache_dir: Path) -> ctypes.CDLL:
    if build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    return build.load_library(native_cache_dir)
