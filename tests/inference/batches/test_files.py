"""Results of a batch whose gateways die, stop and continue: none is lost, none is there twice. Its
requests are read one at a time from a file that may be deleted meanwhile."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inference.batches.files import FileStore, InputFile, ResultFiles, ResultsTakenError
from inference.wire.errors import InvalidRequestError
from tests.cases import each_case

OUTPUT, ERROR = "file-" + "a" * 32, "file-" + "b" * 32
HUGE_BYTES = 1 << 40
"""No other code of this process writes files of that size."""
BATCH: Any = SimpleNamespace(id="batch_" + "c" * 32, output_file=OUTPUT, error_file=ERROR)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files")


def line(custom_id: str, by: str = "") -> bytes:
    return json.dumps({"custom_id": custom_id, "by": by}).encode() + b"\n"


def ids(store: FileStore, file_id: str) -> list[str]:
    return [json.loads(one)["custom_id"] for one in store.path(file_id).read_bytes().splitlines()]


def begun(store: FileStore, holder: str) -> tuple[ResultFiles, list[str]]:
    """With the custom ids of what has been answered."""
    results, answered = ResultFiles(store, BATCH, holder), list[str]()
    results.adopt(lambda result: answered.append(result["custom_id"]))
    return results, answered


def _died(store: FileStore) -> None:
    dead, _ = begun(store, "dead")
    dead.append(OUTPUT, [line("a") + line("b")[:-5]])
    dead.append(ERROR, [line("c")])


def _died_while_it_adopted(store: FileStore) -> None:
    begun(store, "first")[0].append(OUTPUT, [line("a")])
    store.take(store.parts(OUTPUT)[0])


def _crashed(store: FileStore, holder: str = "other") -> ResultFiles:
    before, _ = begun(store, holder)
    before.append(OUTPUT, [line("a")])
    return before


@each_case(
    ("before", "errors"),
    [
        (_died, ["c"]),
        (_died_while_it_adopted, []),
        (lambda store: _crashed(store, "one").finish(), []),  # before its record
        (_crashed, []),  # and was started again
    ],
)
def test_takeover(before: Callable[[FileStore], object], errors: list[str], tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    before(store)
    results, answered = begun(store, "other")
    assert answered == ["a", *errors]
    results.append(OUTPUT, [line("b")])
    results.finish()
    assert ids(store, OUTPUT) == ["a", "b"]
    assert not errors or ids(store, ERROR) == errors
    names = {OUTPUT, ERROR} if errors else {OUTPUT}
    assert {path.name for path in store.path(OUTPUT).parent.iterdir()} == names


def test_a_full_disk_leaves_nothing_torn(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    results, _ = begun(store, "one")
    results.append(OUTPUT, [line("a")])
    (part,) = store.parts(OUTPUT)
    before = part.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    sparse = store.part(ERROR, "one")
    os.truncate(sparse, HUGE_BYTES - 5)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HUGE_BYTES, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            results.append(ERROR, [line("b")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sparse.stat().st_size == HUGE_BYTES - 5
    assert part.read_bytes() == before
    store.write(OUTPUT, [b"before"])

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("inference.batches.files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.write(OUTPUT, [b"after"])
    assert store.path(OUTPUT).read_bytes() == b"before"
    assert sorted(path.name for path in part.parent.iterdir()) == sorted(
        (OUTPUT, part.name, sparse.name)
    )


def test_one_that_lost_its_lease_adds_and_finishes_nothing(store: FileStore) -> None:
    stopped, _ = begun(store, "stopped")
    stopped.append(OUTPUT, [line("a", "stopped")])
    other, _ = begun(store, "other")
    stopped.finish()
    assert not store.has(OUTPUT), "it is not whole"
    with pytest.raises(ResultsTakenError):
        stopped.append(OUTPUT, [line("b", "stopped")])
    other.append(OUTPUT, [line("b", "other")])
    other.finish()
    with pytest.raises(ResultsTakenError):
        stopped.append(OUTPUT, [line("c", "stopped")])
    stopped.finish()
    lines = [json.loads(one) for one in store.path(OUTPUT).read_bytes().splitlines()]
    assert lines == [{"custom_id": "a", "by": "stopped"}, {"custom_id": "b", "by": "other"}]
    store.delete(OUTPUT)
    assert store.parts(OUTPUT) == [] and not store.has(OUTPUT)


CHAT = "/v1/chat/completions"


def request_line(custom_id: str) -> bytes:
    fields = {"method": "POST", "url": CHAT, "body": {"model": "tiny", "messages": []}}
    return json.dumps({"custom_id": custom_id, **fields}).encode()


@each_case("end", [b"\n", b"\r\n", b"\r", b"\n\n \r\n"])
def test_lines_in_their_order_whatever_ends_them(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(end.join(map(request_line, ("a", "é", "c", "d"))))
    lines = InputFile(path, CHAT)
    assert lines.scan({"c"}) == 4
    path.unlink()
    first = lines.next_line()
    assert first is not None and first.custom_id == "a"
    assert json.loads(first.body)["model"] == "tiny"
    assert [one.custom_id for one in lines.rest()] == ["é", "d"]
    assert lines.next_line() is None
    lines.close()


def test_what_cannot_be_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.wire.openai.batches.MAX_REQUESTS", 4)
    path = tmp_path / "requests.jsonl"
    for content, expected in (
        (b"", "holds no requests"),
        (b"\n\n", "holds no requests"),
        (request_line("a") + b"\n\n" + request_line("a"), "Line 3: 'a' is there twice"),
        (request_line("a") + b"\nx", "Line 2: not valid JSON"),
        (b"\n".join(request_line(str(n)) for n in range(5)), "may have 4 requests; it has 5"),
    ):
        path.write_bytes(content)
        with pytest.raises(InvalidRequestError, match=expected):
            InputFile(path, CHAT).scan(set())
