"""One real server with the default model, for all blocks that talk to one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.conftest import with_caches
from tests.live.serving import Serve, wait_until


@pytest.fixture(scope="session")
def data_dir(
    tmp_path_factory: pytest.TempPathFactory,
    model_cache_dir: Path,
    native_cache_dir: Path,
    default_gguf: Path,
) -> Path:
    """Makes the data directory of a first start, but for the downloads."""
    parent = tmp_path_factory.mktemp("documented")
    return with_caches(parent / "var", model_cache_dir, native_cache_dir)


@pytest.fixture(scope="session")
def server(data_dir: Path) -> Iterator[Serve]:
    serve = Serve(data_dir)
    try:
        serve.wait_ready()
        wait_until(serve.is_healthy, "the server is healthy")
        yield serve
    finally:
        serve.end()
