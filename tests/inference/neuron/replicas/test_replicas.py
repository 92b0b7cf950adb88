"""Replicas: their engine's process, what they report, how they wake, and that a load that failed is
tried again once something has changed in its favour, and not before."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from inference.backoff import Backoff
from inference.loading.sources.sources import hub_identity, local_identity
from inference.neuron.errors import LoadRefusedError
from inference.neuron.loads.load import Load
from inference.neuron.replicas import engine_process, retries
from inference.neuron.replicas import record as record_module
from inference.neuron.replicas.engine_process import AHEAD_LIMIT_S, EngineLogs, EngineStarts
from inference.neuron.replicas.record import ReplicaRecord
from inference.neuron.replicas.replica import Replica
from inference.protocol.engine import Wake
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.keys import engine_log_key
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import PERMANENT_FAILURES, LoadFailure, LoadProgress, LoadStage
from inference.protocol.neuron_tasks import decode_engine_log
from tests.cases import each_case
from tests.inference.neuron.conftest import ENGINE_COMMAND, TestNeuron
from tests.inference.reports import engine_stats, load_report

GIB = 1024**3


def failure(code: str, needed_bytes: int | None = None) -> LoadFailure:
    return LoadFailure(code=code, message="", needed_bytes=needed_bytes)


BY_CHANCE = ["engine_crashed", "engine_hung", "engine_error", "device_fault"]
UNSEEN = ["download_failed", "load_stalled", "stage_unreachable", "lost_its_room", "no_device"]


@each_case(
    ("codes", "most_failures"),
    [
        (UNSEEN, 99),
        (BY_CHANCE, retries.MAX_CHANCES),
        (["does_not_fit", "out_of_memory", "disk_full", *sorted(PERMANENT_FAILURES)], 0),
    ],
    ids=["this host cannot see it", "chance", "room, files and settings"],
)
def test_what_a_load_waits_for(codes: list[str], most_failures: int) -> None:
    for code in codes:
        if most_failures:
            assert retries.waits_for_time(failure(code), most_failures)
        if most_failures < 99:
            assert not retries.waits_for_time(failure(code), most_failures + 1)
    assert retries.waits_for_time(failure("does_not_fit", 5 * GIB), 99), (
        "it is placed by what it needs"
    )
    policy = retries.RestartPolicy(backoff=Backoff(first_s=0.5, max_s=1.5), max_quick_failures=5)
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
        self.watch = retries.FailedLoads(lambda: [self], **values | changes)  # type: ignore[list-item]

    def improve(self) -> None:
        self.unchanged_failure = None

    def drain(self) -> None:
        self.is_dropped = True

    def is_changed(self) -> bool:
        self.watch.check()
        return self.is_dropped or self.unchanged_failure is None


def spec_of(source: str = "path:/m", job_id: str = "j", **changes: Any) -> LoadSpec:
    return LoadSpec(job_id=job_id, model="m", source=source, **changes)


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


def test_no_folder_below_is_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    now_s = 0.0
    options: dict[str, Any] = {"ask_hub": lambda _: commits.pop(0), "clock": lambda: now_s}
    failed = Failed("huggingface:org/m", code, **options)
    for source in ("pypi:tiny", "path:/nowhere", "nonsense"):
        assert hub_identity(spec_of(source)) is None, "no hub has it"
    for num_left in (3, 2, 1):
        assert not failed.is_changed() and not failed.is_changed()
        assert len(commits) == num_left
        now_s += retries.ASK_HUB_S
    assert failed.is_changed()


@each_case(
    ("code", "device", "is_changed"),
    [
        ("out_of_memory", "cuda:0", True),
        ("out_of_memory", "cuda:1", True),
        ("out_of_memory", "cpu", False),
        ("does_not_fit", "cuda:0", True),
        *((code, "cuda:0", True) for code in BY_CHANCE),
        ("disk_full", "cuda:0", False),
        ("disk_full", "disk", True),
        ("engine_crashed", "disk", False),
        *((code, "cuda:0", False) for code in sorted(PERMANENT_FAILURES)),
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
    free["disk"] += retries.MORE_DISK_BYTES - 1  # as logs come and go
    free["cuda:0"] += retries.MORE_MEMORY_BYTES - 1
    assert not failed.is_changed()
    free[device] = 5 << 30
    assert failed.is_changed() == is_changed
    ranks = Failed("pypi:m", "out_of_memory", free_bytes=lambda: free)
    ranks.load.devices = ("cuda:0", "cuda:1")
    for number, is_enough in ((9, False), (10, True)):  # each of them needs more
        ranks.load.free_before = {"cuda:0": 4 << 30, "cuda:1": 4 << 30}
        free |= {"cuda:0": 9 << 30, "cuda:1": (number << 30) // 2 - retries.MORE_MEMORY_BYTES}
        assert ranks.is_changed() == is_enough


def test_a_neuron_drops_the_failure_of_a_file_that_was_mended(
    neuron: TestNeuron, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "CHECK_S", 0.02)
    file = tmp_path / "m.gguf"
    file.write_bytes(b"half")
    neuron.options = {"engine_command": [*ENGINE_COMMAND, "--options", "load_fails=2"]}
    assert neuron.refused(source=f"path:{file}").is_permanent
    file.write_bytes(b"whole")
    neuron.wait_gone()


def test_an_engine_that_cannot_be_started_fails_its_load(neuron: TestNeuron) -> None:
    neuron.options = {"engine_command": ["/nowhere/engine"]}
    failure = neuron.refused()
    assert failure.code == "engine_crashed" and "/nowhere/engine" in failure.message


WAIT_S = 30.0


def test_lines_are_bounded(monkeypatch: pytest.MonkeyPatch, redis_db: Any, capfd: Any) -> None:
    """A reload starts another engine, which does not hide why the first one ended."""
    monkeypatch.setattr(engine_process, "MAX_MODEL_BYTES", 35)
    monkeypatch.setattr(engine_process, "MAX_MODELS", 2)
    logs = EngineLogs(redis_db, neuron="n1")
    for number in range(5):
        logs.writer("tiny")(b"0123456789%d\n" % number)
    assert logs.lines("tiny", 100) == ["01234567893", "01234567894"]
    assert logs.lines("tiny", 1) == ["01234567894"]
    assert capfd.readouterr().err.count("\n") == 5, "the neuron's own log has them as well"
    logs.writer("huge")
    logs.writer("tiny")(b"x\n")
    logs.writer("other")
    assert (logs.lines("huge", 1), logs.lines("other", 1)) == (None, [])
    logs.writer("tiny")(b"Authorization: Bearer abcdefgh\xff\n")
    for ask, model, lines in (("1", "tiny", ["Authorization: Bearer ***"]), ("2", "nobody", [])):
        logs.send(ask, model, 1)
        key = engine_log_key("n1", ask)
        assert 0 < redis_db.ttl(key) <= 30
        answer = decode_engine_log(redis_db.lpop(key))
        assert (answer.lines, answer.is_known) == (lines, bool(lines))


ENGINE = r"""
import socket, sys
connection = socket.socket(fileno=int(sys.argv[2]))
print(len(connection.recv(4)), file=sys.stderr, flush=True)
"""


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_the_first_load_takes_the_engine_that_is_started_ahead() -> None:
    now_s, lines = 0.0, list[bytes]()
    command = [sys.executable, "-c", ENGINE]
    starts = EngineStarts(command, lambda _: lines.append, clock=lambda: now_s)

    def ahead() -> int:
        before = children()
        starts.start_ahead()
        (pid,) = children() - before
        return pid

    def load() -> int:
        """The process id of its engine, which has read its spec."""
        engine = starts.start(spec_of())
        list(engine.messages())
        engine.reap()
        return engine.pid

    pid = ahead()
    assert load() == pid != load()
    assert lines == [b"4\n", b"4\n"]
    os.kill(pid := ahead(), signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert load() != pid
    before, pid = children(), ahead()
    starts.tick()
    assert children() - before == {pid}
    now_s = AHEAD_LIMIT_S
    starts.tick()
    assert children() == before
    starts.close()


def test_a_stage_of_a_load_begins_with_its_first_report(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100, 200, 10))
    monkeypatch.setattr(record_module, "time", SimpleNamespace(time=lambda: float(next(now))))
    record = ReplicaRecord(spec_of())  # at 100
    since = []
    for stage, done in (("weights", 0), ("weights", 5), ("warmup", 0), ("warmup", 1)):
        record.progressed(LoadProgress(stage=LoadStage(stage), done=done, total=9))
        since.append(record.state().stage_since_unix_s)
    assert since == [110.0, 110.0, 130.0, 130.0], "its engine was started at 120"


def test_the_report_has_the_engines_warnings_and_drafts_of_lately() -> None:
    record = ReplicaRecord(spec_of())
    report = load_report(warnings=["no C compiler"], speculation="auto: whichever pays")
    text: Any = SimpleNamespace(report=report, capabilities=[])
    record.engine_loaded(text)
    warned = ["prefixes on disk are off"]
    for warnings, speculation in (([], ""), (warned, "none in 100 %"), ([], "")):
        stats = engine_stats(speculation=speculation, warnings=warnings)
        record.reported(stats, worked=bool(warnings))
        found = record.state().report
        assert found.warnings == ["no C compiler", *warnings]
        lately = f"; {speculation}" if speculation else ""
        assert found.speculation == f"auto: whichever pays{lately}"


@each_case(
    "problem",
    [LoadRefusedError(LoadFailure(code="does_not_fit", message="no room")), ZeroDivisionError()],
    ids=["refused", "broken"],
)
def test_who_asks_as_soon_as_it_is_seen_to_sleep_on_wakes_it(problem: Exception) -> None:
    """A heartbeat reports that it sleeps on, which lets a gateway ask again."""
    woken, jobs, problems = threading.Event(), list[str](), [problem]

    def readmit(*_: Any) -> bool:
        jobs.append(replica.spec.job_id)
        if problems:
            raise problems.pop()
        return True

    def on_change() -> None:
        if replica.status is ReplicaStatus.ASLEEP:
            replica.wake(spec_of(job_id="second"))

    def send(command: object) -> None:
        assert isinstance(command, Wake)
        woken.set()

    context: Any = SimpleNamespace(
        admission=SimpleNamespace(readmit=readmit),
        loads=SimpleNamespace(wake=lambda: None),
        clock=lambda: 0.0,
        load_stall_limit_s=None,
        on_change=on_change,
    )
    replica = Replica(spec_of(job_id="first"), context)
    replica._engine, replica.status = SimpleNamespace(send=send), ReplicaStatus.ASLEEP  # type: ignore[assignment]
    replica.wake(spec_of(job_id="first"))
    assert woken.wait(WAIT_S)
    assert (jobs, replica.status) == (["first", "second"], ReplicaStatus.LOADING)
