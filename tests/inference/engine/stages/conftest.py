from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from inference.engine import children
from tests.inference.engine.stages import loads
from tests.inference.engine.stages.thread_stages import StageThread


@pytest.fixture(autouse=True)
def stages_as_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs stages as threads, for loads in the test's process; none is left behind."""
    monkeypatch.setattr(children, "start_process", StageThread)
    num_threads = torch.get_num_threads()
    yield
    loads.close_all()
    torch.set_num_threads(num_threads)
