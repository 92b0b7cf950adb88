"""A load that failed is tried again once something has changed in its favour, and not before."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from inference.backoff import Backoff
from inference.loading.sources.sources import hub_identity, local_identity
from inference.neuron.loads.load import Load
from inference.neuron.replicas import retries
from inference.neuron.replicas.retries import (
    ASK_HUB_S,
    MAX_CHANCES,
    MORE_MEMORY_BYTES,
    Conditions,
    FailedLoads,
    RestartPolicy,
    has_improved,
    waits_for_time,
)
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import PERMANENT_FAILURES, LoadFailure
from tests.cases import each_case
from tests.inference.neuron.conftest import TestNeuron

GIB = 1024**3
LITTLE = Conditions(device_free_bytes={"cuda:0": GIB, "cuda:1": GIB}, disk_free_bytes=GIB)
MUCH = Conditions(device_free_bytes={"cuda:0": 9 * GIB, "cuda:1": 9 * GIB}, disk_free_bytes=9 * GIB)


def failure(code: str, needed_bytes: int | None = None) -> LoadFailure:
    return LoadFailure(code=code, message="", needed_bytes=needed_bytes)


BY_CHANCE = ["engine_crashed", "engine_hung", "engine_error", "device_fault"]
UNSEEN = ["download_failed", "load_stalled", "stage_unreachable", "lost_its_room", "no_device"]
NO_ROOM = ["does_not_fit", "out_of_memory", "disk_full"]


@each_case(
    ("codes", "most_failures", "by_room"),
    [
        (UNSEEN, 99, None),
        (BY_CHANCE, MAX_CHANCES, True),
        (NO_ROOM, 0, True),
        (sorted(PERMANENT_FAILURES), 0, False),
    ],
    ids=["this host cannot see it", "chance", "room", "files and settings"],
)
def test_what_a_failed_load_waits_for(
    codes: list[str], most_failures: int, by_room: bool | None
) -> None:
    """For time, up to so many failures, and for room."""
    for code in codes:
        if most_failures:
            assert waits_for_time(failure(code), most_failures)
        if most_failures < 99:
            assert not waits_for_time(failure(code), most_failures + 1)
        if by_room is not None:
            assert has_improved(failure(code), ["cuda:0"], LITTLE, MUCH) == by_room
            assert not has_improved(failure(code), ["cuda:0"], LITTLE, LITTLE)
            assert not has_improved(failure(code), ["cuda:0"], MUCH, LITTLE)
    assert waits_for_time(failure("does_not_fit", 5 * GIB), 99), "it is placed by what it needs"
    one = Conditions(device_free_bytes={"cuda:0": 9 * GIB, "cuda:1": GIB})
    ranks = ["cuda:0", "cuda:1"]
    assert not has_improved(failure("out_of_memory"), ranks, LITTLE, one)
    assert has_improved(failure("out_of_memory"), ranks, LITTLE, MUCH)
    noise = {"cuda:0": GIB + MORE_MEMORY_BYTES - 1, "cuda:1": GIB}
    now = Conditions(device_free_bytes=noise, disk_free_bytes=GIB + 1)
    for code in ("out_of_memory", "disk_full"):
        assert not has_improved(failure(code), ["cuda:0"], LITTLE, now)
    policy = RestartPolicy(backoff=Backoff(first_s=0.5, max_s=1.5), max_quick_failures=5)
    delays = [policy.delay_s(failures) for failures in range(1, 7)]
    assert delays == [0.0, 0.5, 1.0, 1.5, 1.5, None]


class Failed:
    """What ``FailedLoads`` asks of a replica, and the watch over it."""

    def __init__(self, source: str, code: str | None = "bad_file", **changes: Any) -> None:
        """``code``: by which it failed, ``None``: by one that time alone mends."""
        self.spec = spec_of(source)
        self.load = Load(self.spec, file_identity=local_identity(self.spec))
        self.unchanged_failure = None if code is None else failure(code)
        self.is_dropped = False
        values: dict[str, Any] = {"ask_hub": lambda _: None, "free_bytes": dict}
        values["cache_dir"] = Path("/")
        self.watch = FailedLoads(lambda: [self], **values | changes)  # type: ignore[list-item]

    def improve(self) -> None:
        self.unchanged_failure = None

    def drain(self) -> None:
        self.is_dropped = True

    def is_changed(self) -> bool:
        self.watch.check()
        return self.is_dropped or self.unchanged_failure is None


def spec_of(source: str, **changes: Any) -> LoadSpec:
    return LoadSpec(job_id="j", model="m", source=source, **changes)


@each_case("change", ["rewritten", "replaced", "completed"])
@each_case("names", ["", "a.gguf"])
def test_files_on_disk(tmp_path: Path, change: str, names: str) -> None:
    file, later = tmp_path / "a.gguf", int(change == "rewritten")
    file.write_bytes(b"half")
    failed = Failed(f"path:{tmp_path / names}")
    others = Failed(f"path:{tmp_path / names}", code=None)
    assert not failed.is_changed() and not failed.is_changed()
    others.watch.check()
    stats = file.stat()
    match change:
        case "completed":
            (tmp_path / "tokenizer.json").write_bytes(b"{}")
        case "rewritten":
            file.write_bytes(b"good")
        case "replaced":  # by another one of the same size and time
            Path(shutil.copy2(file, tmp_path / "b.tmp")).replace(file)
    os.utime(file, ns=(stats.st_atime_ns, stats.st_mtime_ns + later))
    others.watch.check()
    assert failed.is_changed() and failed.is_dropped and not others.is_dropped


@each_case("is_removed", [False, True])
def test_a_download_that_was_replaced(tmp_path: Path, is_removed: bool) -> None:
    """A refused load removes only an unchanged file; one that was written again stays."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"half")
    failed = Failed("huggingface:org/m", ask_hub=lambda _: "commit")
    failed.load.weights = (file,)
    assert not failed.is_changed()
    if is_removed:
        file.unlink()
    assert not failed.is_changed()
    file.write_bytes(b"whole")
    assert failed.is_changed()


def test_nothing_below_the_folder_of_a_file_is_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may be a home or a disk's root, where some files cannot be read."""
    (tmp_path / "below").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    scanned, scan = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scanned.append(Path(path)) or scan(path))
    source = f"path:{tmp_path}/model.gguf"
    drafting = {"speculation": "draft_model", "draft_model": source}
    specs = [spec_of(source), spec_of("huggingface:org/m", **drafting)]
    before = [local_identity(spec) for spec in specs]
    (tmp_path / "model.gguf").write_bytes(b"whole")
    for spec, identity in zip(specs, before, strict=True):
        assert identity is not None and local_identity(spec) != identity
    assert {*scanned} == {tmp_path}


@each_case(
    ("code", "commits"),
    [("bad_file", ["one", "one", None, "two"]), ("repo_fetch_failed", [None, None, None, "one"])],
    ids=["another commit", "a repository that was refused answers"],
)
def test_what_the_hub_has_changed(code: str, commits: list[str | None]) -> None:
    """An answer that does not come changes nothing, and the hub is asked rarely."""
    now_s = 0.0
    options: dict[str, Any] = {"ask_hub": lambda _: commits.pop(0), "clock": lambda: now_s}
    failed = Failed("huggingface:org/m", code, **options)
    for source in ("pypi:tiny", "path:/nowhere", "nonsense"):
        assert hub_identity(spec_of(source)) is None, "no hub has it"
    for num_left in (3, 2, 1):
        assert not failed.is_changed() and not failed.is_changed()
        assert len(commits) == num_left
        now_s += ASK_HUB_S
    assert failed.is_changed()


@each_case(
    ("code", "device", "is_changed"),
    [
        ("out_of_memory", "cuda:0", True),
        ("out_of_memory", "cuda:1", True),
        ("out_of_memory", "cpu", False),
        ("engine_crashed", "cuda:0", True),
        ("disk_full", "cuda:0", False),
        ("disk_full", "disk", True),
        ("engine_crashed", "disk", False),
        ("bad_file", "cuda:0", False),
    ],
)
def test_memory_or_disk_that_was_freed(
    monkeypatch: pytest.MonkeyPatch, code: str, device: str, is_changed: bool
) -> None:
    """The memory is on the device that it failed on, or on another one of that kind."""
    free = {"cuda:0": 4 << 30, "cuda:1": 2 << 30, "cpu": 9 << 30, "disk": 10 << 20}
    monkeypatch.setattr(retries, "free_disk_bytes", lambda _: free["disk"])
    failed = Failed("pypi:m", code, free_bytes=lambda: free)
    if device != "disk":  # else it has come to none
        failed.load.devices, failed.load.free_before = ("cuda:0",), dict(free)
    assert not failed.is_changed()
    free["disk"] += 1 << 20  # as logs come and go
    assert not failed.is_changed()
    free[device] = 5 << 30
    assert failed.is_changed() == is_changed


def test_a_neuron_drops_the_failure_of_a_file_that_was_mended(
    neuron: TestNeuron, engine_command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "CHECK_S", 0.02)
    file = tmp_path / "m.gguf"
    file.write_bytes(b"half")
    neuron.options = {"engine_command": [*engine_command, "--options", "load_fails=2"]}
    assert neuron.refused(source=f"path:{file}").is_permanent
    file.write_bytes(b"whole")
    neuron.wait_gone()


def test_an_engine_that_cannot_be_started_fails_its_load(neuron: TestNeuron) -> None:
    neuron.options = {"engine_command": ["/nowhere/engine"]}
    failure = neuron.refused()
    assert failure.code == "engine_crashed" and "/nowhere/engine" in failure.message
