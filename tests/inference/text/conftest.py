"""A tokenizer that knows a thinking block, and its markers."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.text.reasoning import ReasoningMarkers, find_markers
from inference.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(thinking_dir: Path) -> Tokenizer:
    return Tokenizer.load(thinking_dir)


@pytest.fixture(scope="session")
def markers(tokenizer: Tokenizer) -> ReasoningMarkers:
    found = find_markers(tokenizer, None)
    assert found is not None
    return found
