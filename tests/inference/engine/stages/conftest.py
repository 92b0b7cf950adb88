from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from inference.engine import children
from inference.engine.stages import remote_stage
from tests.inference.engine.stages import stages


@pytest.fixture(autouse=True)
def stages_as_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs stages as threads, for loads in the test's process; none is left behind."""
    monkeypatch.setattr(children, "start_process", stages.StageThread)
    monkeypatch.setattr(os, "_exit", lambda code: None)
    monkeypatch.setattr(remote_stage, "forget_secrets", lambda environment: None)
    monkeypatch.setenv("HELEXA_STAGE_LISTEN", "127.0.0.1")
    monkeypatch.setenv("HELEXA_ENGINE_THREADS", "1")
    num_threads = torch.get_num_threads()
    yield
    stages.close_all()
    while stages.held:
        stage = stages.held.pop()
        stage.thread.join(stages.WAIT_S)
        assert not stage.thread.is_alive(), "it would end the test's process"
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory, native_cache_dir: Path) -> Path:
    """Makes a data directory that other tests do not use: a quality figure that is found there is
    not measured again."""
    directory = tmp_path_factory.mktemp("staged")
    (directory / "cache").mkdir()
    (directory / "cache" / "native").symlink_to(native_cache_dir)
    return directory
