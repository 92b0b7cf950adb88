"""The id of an instance: one for each data directory, and a copy of one is another."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from helexa_site.instance import INSTANCE_FILE, instance_id, known_instance_id
from tests.cases import each_case

NUM_THREADS = 8


def fresh(data_dir: Path) -> str | None:
    """Returns the instance as another process finds it."""
    instance_id.cache_clear()
    return instance_id(data_dir)


def test_it_stays_with_its_directory(tmp_path: Path) -> None:
    assert known_instance_id(tmp_path) is None
    found = fresh(tmp_path)
    assert found and found == fresh(tmp_path) == known_instance_id(tmp_path)


def test_a_copied_directory_is_another_instance(tmp_path: Path) -> None:
    """Both gateways had one id: a command took the other's port for its own."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    found = fresh(original)
    shutil.copytree(original, copy)
    assert known_instance_id(copy) is None
    renewed = fresh(copy)
    assert renewed and renewed == known_instance_id(copy) != found
    assert fresh(original) == found


@each_case("text", ["", "0123456789abcdef", "0123456789abcdef 1:1 1", "a b"])
def test_what_an_older_build_left_is_renewed(tmp_path: Path, text: str) -> None:
    (tmp_path / INSTANCE_FILE).write_text(text)
    assert known_instance_id(tmp_path) is None
    found = fresh(tmp_path)
    assert found and found == known_instance_id(tmp_path) and not text.startswith(found)


def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    (tmp_path / INSTANCE_FILE).write_text("a copy's")
    barrier = threading.Barrier(NUM_THREADS)

    def start(_: int) -> str | None:
        barrier.wait()
        return instance_id.__wrapped__(tmp_path)

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        found = set(threads.map(start, range(NUM_THREADS)))
    assert found == {known_instance_id(tmp_path)}


def test_a_directory_that_cannot_be_written_has_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert fresh(tmp_path / "file" / "below") is None
