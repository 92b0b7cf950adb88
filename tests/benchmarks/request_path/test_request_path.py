"""The way of a request: that it is traced, and that ``docs/architecture.md`` shows it as it is."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.request_path.__main__ import by_room
from benchmarks.request_path.recorder import Files, Recorder, on_each
from helexa_site.config import REPOSITORY_DIR
from inference.backoff import Backoff

ARCHITECTURE = REPOSITORY_DIR / "docs" / "architecture.md"
PROCESS = re.compile(r"(\w+): \d+ files")
ROOM = re.compile(r"  (\S+): (.+)")
REGENERATE = "python -m benchmarks.request_path"
MAX_DIFFERING = 4


def on_the_way(text: str) -> dict[str, set[str]]:
    """Process -> its files, from the tool's output."""
    found: dict[str, set[str]] = {}
    process = room = ""
    for line in text.splitlines():
        if match := PROCESS.fullmatch(line):
            process = match[1]
        elif (match := ROOM.fullmatch(line)) or line.startswith("      "):
            room, names = match.groups() if match else (room, line)
            files = found.setdefault(process, set())
            files.update(f"{room}/{name.strip()}" for name in names.split(",") if name.strip())
    return found


def test_what_threads_call_is_recorded_by_process() -> None:
    def wait() -> None:
        Backoff(first_s=0.1, max_s=1.0).wait_s(1)

    recorder = Recorder(lambda: threading.current_thread().name.partition("-")[0])
    with recorder.installed():
        wait()
        recorder.files = found = {}
        for name in ("gateway-1", "gateway-2"):
            thread = threading.Thread(target=wait, name=name)
            thread.start()
            thread.join()
        recorder.files = None
        wait()
    (functions,) = found["gateway"].values()
    assert list(found["gateway"]) == ["inference/backoff.py"]
    assert functions.count("Backoff.wait_s") == 1


def test_a_file_is_on_the_way_when_every_chat_passed_it() -> None:
    chats: list[Files] = [
        {"inference/a.py": ["f", "g"], "inference/timer.py": ["t"], "fleet/b.py": ["h"]},
        {"fleet/b.py": ["h"], "inference/a.py": ["g"]},
    ]
    found = on_each(chats)
    assert found == {"fleet/b.py": ["h"], "inference/a.py": ["g"]}
    lines = by_room({"gateway": found, "engine": {"fleet/b.py": ["h"]}})
    assert lines == [
        "gateway: 2 files",
        "  fleet: b",
        "  inference: a",
        "engine: 1 files",
        "  fleet: b",
        "2 files",
    ]
    assert on_the_way("\n".join(lines)) == {
        "gateway": {"fleet/b", "inference/a"},
        "engine": {"fleet/b"},
    }


def shown() -> dict[str, set[str]]:
    """The listing in the architecture's page."""
    _, _, section = ARCHITECTURE.read_text().partition("### The files on its way")
    return on_the_way(section.split("```")[1])


def test_the_architecture_shows_files_that_exist() -> None:
    files = [file for found in shown().values() for file in found]
    assert len(files) > 100
    assert [file for file in files if not (REPOSITORY_DIR / f"{file}.py").exists()] == []


@pytest.mark.slow
def test_the_architecture_shows_the_way_of_a_request(
    default_gguf: Path, native_cache_dir: Path
) -> None:
    """The two are equal but for what a log line or the pace of steps decides from run to run."""
    command = [sys.executable, "-m", "benchmarks.request_path"]
    done = subprocess.run(command, cwd=REPOSITORY_DIR, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found, listed = on_the_way(done.stdout), shown()
    assert found.keys() == listed.keys()
    differing = [file for process in found for file in found[process] ^ listed[process]]
    assert len(differing) <= MAX_DIFFERING, f"{REGENERATE}: {differing}"
