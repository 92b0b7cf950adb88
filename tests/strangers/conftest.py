"""One real server with the default model, for all that a stranger tries on one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.conftest import with_caches
from tests.live.serving import Serve, wait_until


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory,
    model_cache_dir: Path,
    native_cache_dir: Path,
    default_gguf: Path,
) -> Iterator[Serve]:
    parent = tmp_path_factory.mktemp("strangers")
    with Serve(with_caches(parent / "var", model_cache_dir, native_cache_dir)) as serve:
        wait_until(serve.is_healthy, "the server is healthy")
        yield serve
