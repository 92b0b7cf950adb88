"""A tokenizer and a table of requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.neuron.requests.request_table import RequestTable
from inference.text.tokens.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(byte_level_dir: Path) -> Tokenizer:
    return Tokenizer.load(byte_level_dir)


@pytest.fixture
def table() -> RequestTable:
    return RequestTable()
