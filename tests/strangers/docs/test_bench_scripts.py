"""The README's ``scripts/bench`` lines, each for one round of one row."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.strangers.docs.blocks import commands_of
from tests.strangers.docs.newcomer import Newcomer, blocks_for, linked_checkout

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(600)]

(BLOCK,) = blocks_for("bench-script")
ROW = "decode, 1 at once"


def shortened(line: str) -> str:
    """One round of one row, of what can be imported."""
    line = re.sub(r" --rounds \d+", "", line)
    return line.replace("scripts/bench", f"scripts/bench --rounds 1 --only '{ROW}'")


@pytest.mark.parametrize("line", commands_of(BLOCK))
def test_the_bench_measures_what_is_installed(line: str, tmp_path: Path) -> None:
    newcomer = Newcomer(linked_checkout(tmp_path / "helexa"), rewrites={}, environment={})
    output = newcomer.run(shortened(line))
    if "run.json" in line:
        output = (newcomer.folder / "run.json").read_text()
        assert ROW in json.dumps(json.loads(output))
    assert "decode" in output
