"""The way of a request is traced."""

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


@pytest.mark.slow
def test_a_chat_is_traced(default_gguf: Path, native_cache_dir: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.request_path"]
    done = subprocess.run(command, cwd=REPOSITORY_DIR, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\w+): \d+ files$", done.stdout, re.M) == ["gateway", "neuron", "engine"]
    assert re.search(r"^\d+ files$", done.stdout, re.M)
