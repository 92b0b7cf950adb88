"""The same tests run the kernels through Triton's interpreter on a CPU (see the suite's conftest)
and compiled on a card."""

from __future__ import annotations

import pytest
import torch

from tests.interpreted_triton import patch_once_a_launch


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter() -> None:
    patch_once_a_launch()
