"""The debs on a Debian of their own: installed, asked, upgraded, removed and purged."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TRY_DEBS = Path(__file__).resolve().parents[2] / "packaging" / "try-debs"
NOTHING_TRIED = 75


@pytest.mark.slow
@pytest.mark.limit_s(2400)
@pytest.mark.usefixtures("default_gguf")
def test_installed_asked_upgraded_removed_and_purged(model_cache_dir: Path) -> None:
    """Needs root, namespaces, and Debian's packages from a mirror."""
    if shutil.which("debootstrap") is None:
        pytest.skip("there is no debootstrap on this machine")
    done = subprocess.run(
        (str(TRY_DEBS), "--venv", sys.prefix, "--models", str(model_cache_dir)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == NOTHING_TRIED:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [line for line in done.stdout.splitlines() if line.startswith("== ")]
    said = ["install", "first start", "start, and a question", "upgrade", "remove", "purge"]
    assert [word for word in said if not any(line[3:].startswith(word) for line in steps)] == []
    assert done.stdout.count("Paris") >= 2
