"""The bench of two native builds, with one build as both."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.weights.native_builds import Pass, main
from helexa_site.config import REPOSITORY_DIR
from inference.models.native import build

pytestmark = pytest.mark.slow


def test_a_pass_is_read_from_its_words() -> None:
    assert Pass.parse("512", is_prompt=True) == Pass(512, 0, is_prompt=True)
    step = Pass.parse("8@64", is_prompt=False)
    assert (step.num_tokens, step.num_blocks, str(step)) == (65, 24, "decode, 8 after 64")


def test_one_build_is_the_same_as_itself(
    default_gguf: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    native_cache_dir: Path,
) -> None:
    if build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    words = ["--rounds", "1", "--prompts", "40@32", "--decodes", "3@5", "--data-dir"]
    files = [str(default_gguf), str(REPOSITORY_DIR)]
    monkeypatch.setattr(sys, "argv", ["bench", *files, *words, str(native_cache_dir)])
    main()
    rows = [line for line in capsys.readouterr().out.splitlines() if "after" in line]
    assert len(rows) == 2 and all("same" in row for row in rows)
