"""The kernels that benchmarks compare run through Triton's interpreter on a CPU, as in
``tests/inference/models/cuda``."""

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
