"""Results of a batch whose gateways die, stop and go on: none is lost, none is there twice."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from inference.batches.file_store import FileStore
from inference.batches.records import BatchRecord
from inference.batches.result_files import ResultFiles

OUTPUT, ERROR = "file-" + "a" * 32, "file-" + "b" * 32
NOW = datetime(2026, 1, 1, tzinfo=UTC)
BATCH = BatchRecord(
    id="batch_" + "c" * 32,
    account="lab",
    key="",
    dialect="openai",
    endpoint="/v1/completions",
    status="in_progress",
    input_file="file-" + "d" * 32,
    output_file=OUTPUT,
    error_file=ERROR,
    num_total=4,
    num_completed=0,
    num_failed=0,
    num_expired=0,
    num_cancelled=0,
    metadata_json="{}",
    failure="",
    created_at=NOW,
    expires_at=NOW,
)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files")


def line(custom_id: str, by: str = "") -> bytes:
    return json.dumps({"custom_id": custom_id, "by": by}).encode() + b"\n"


def ids(store: FileStore, file_id: str) -> list[str]:
    return [json.loads(one)["custom_id"] for one in store.read(file_id).splitlines()]


def test_one_gateway_writes_a_file(store: FileStore) -> None:
    results = ResultFiles(store, BATCH, "one")
    assert results.adopt() == []
    results.append(OUTPUT, line("a"))
    results.append(OUTPUT, line("b"))
    assert not store.has(OUTPUT), "it is there once it is whole"
    results.finish()
    assert ids(store, OUTPUT) == ["a", "b"]
    assert not store.has(ERROR) and store.parts(OUTPUT) == []


def test_another_goes_on_with_what_is_whole(store: FileStore) -> None:
    dead = ResultFiles(store, BATCH, "dead")
    dead.append(OUTPUT, line("a") + line("b")[:-5])
    dead.append(ERROR, line("c"))
    other = ResultFiles(store, BATCH, "other")
    assert [one["custom_id"] for one in other.adopt()] == ["a", "c"]
    other.append(OUTPUT, line("b"))
    other.finish()
    assert (ids(store, OUTPUT), ids(store, ERROR)) == (["a", "b"], ["c"])
    assert [path.name for path in sorted(store.path(OUTPUT).parent.iterdir())] == [OUTPUT, ERROR]


def test_one_that_lost_its_lease_without_knowing_spoils_nothing(store: FileStore) -> None:
    stopped = ResultFiles(store, BATCH, "stopped")
    stopped.append(OUTPUT, line("a", "stopped"))
    other = ResultFiles(store, BATCH, "other")
    other.adopt()
    stopped.append(OUTPUT, line("b", "stopped"))
    other.append(OUTPUT, line("b", "other"))
    other.finish()
    stopped.append(OUTPUT, line("c", "stopped"))
    told = [json.loads(one) for one in store.read(OUTPUT).splitlines()]
    assert told == [{"custom_id": "a", "by": "stopped"}, {"custom_id": "b", "by": "other"}]
    store.delete(OUTPUT)
    assert [*store.path(OUTPUT).parent.iterdir()] == []


def test_a_crash_between_the_end_and_its_record_changes_nothing(store: FileStore) -> None:
    first = ResultFiles(store, BATCH, "first")
    first.append(OUTPUT, line("a"))
    first.finish()
    second = ResultFiles(store, BATCH, "second")
    assert [one["custom_id"] for one in second.adopt()] == ["a"]
    second.finish()
    assert ids(store, OUTPUT) == ["a"]


def test_the_same_gateway_takes_it_up_again(store: FileStore) -> None:
    first = ResultFiles(store, BATCH, "one")
    first.append(OUTPUT, line("a"))
    again = ResultFiles(store, BATCH, "one")
    assert [one["custom_id"] for one in again.adopt()] == ["a"]
    again.append(OUTPUT, line("b"))
    again.finish()
    assert ids(store, OUTPUT) == ["a", "b"]
