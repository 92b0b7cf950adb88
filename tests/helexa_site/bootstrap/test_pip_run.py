"""What an installation prints: how far it is, never pip's own lines unless it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from helexa_site.bootstrap import pip_run
from helexa_site.bootstrap.pip_run import run_pip

LINES = """\
Looking in links: wheels
Collecting django==5.2.19
  Downloading django-5.2.19-py3-none-any.whl.metadata (4.1 kB)
Collecting torch==2.13.0
  Downloading https://download.example.org/whl/torch-2.13.0.whl (190.1 MB)
Installing collected packages: torch, django
Successfully installed django-5.2.19 torch-2.13.0
"""
UNTIL_THERE = """
import os, time
print({lines!r})
give_up_s = time.monotonic() + 120
while not os.path.exists({path!r}) and time.monotonic() < give_up_s:
    time.sleep(0.01)
"""


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a program in pip's place, and gives what the console shows and the log has."""

    def run(code: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
        real = subprocess.Popen
        monkeypatch.setattr(
            pip_run.subprocess,
            "Popen",
            lambda _command, **options: real([sys.executable, "-u", "-c", code], **options),
        )
        outcome = run_pip(["anything"], tmp_path / "pip.log")
        return outcome.return_code, capsys.readouterr().out, (tmp_path / "pip.log").read_text()

    return run


def test_what_pip_prints_is_in_the_log(
    pip, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, shown, log = pip(f"print({LINES!r}, end=''); exit(3)", capsys)
    assert (code, log) == (3, LINES)
    assert shown.splitlines() == [f"environment pip's output: {tmp_path / 'pip.log'}"]


def test_a_long_download_is_reported_now_and_then(
    pip, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pip_run, "PROGRESS_EVERY_S", 0.05)
    downloading = "Downloading torch-2.13.0.whl (190.1 MB)"
    is_shown, print_step = tmp_path / "shown", pip_run.print_step

    def noted(subject: str, text: str) -> None:
        print_step(subject, text)
        if downloading in text:
            is_shown.touch()

    monkeypatch.setattr(pip_run, "print_step", noted)
    lines = f"Collecting torch\n  {downloading}\nWARNING: Location 'wheels' is ignored"
    _, shown, _ = pip(UNTIL_THERE.format(lines=lines, path=str(is_shown)), capsys)
    assert downloading in shown


def test_a_pip_that_takes_for_ever_is_ended(
    pip, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pip_run, "PROGRESS_EVERY_S", 0.05)
    monkeypatch.setattr(pip_run, "LIMIT_S", 0.1)
    code, shown, _ = pip("import time; time.sleep(600)", capsys)
    assert code != 0 and "pip is ended" in shown
