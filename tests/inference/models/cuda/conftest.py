"""The same tests run the kernels through Triton's interpreter on a CPU (the suite's conftest says
so) and compiled on a card."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
