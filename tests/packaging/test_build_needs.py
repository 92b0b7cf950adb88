"""Scripts that build packages name their missing tools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "packaging" / "build"


def test_a_python_without_requirements_is_named_another(tmp_path: Path) -> None:
    built = subprocess.run(
        (sys.executable, "-S", str(BUILD), "--out", str(tmp_path / "dist")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 1
    assert len(built.stderr.splitlines()) == 1
    assert ".venv/bin/python packaging/build" in built.stderr
    assert not (tmp_path / "dist").exists()
