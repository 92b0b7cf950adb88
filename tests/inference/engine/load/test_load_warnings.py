"""What a host lacks is a line of the report of each load that is slower for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.engine.load.load_engine import load_warnings


def test_a_card_on_a_host_without_a_c_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    (warning,) = load_warnings(torch.device("cuda:0"))
    assert "C compiler" in warning
    assert load_warnings(torch.device("cpu")) == [], "nothing there is built with Triton"
