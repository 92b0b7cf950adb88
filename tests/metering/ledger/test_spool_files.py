"""Files of bills: torn, damaged, full disks, and processes that are killed."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as checks
from hypothesis import strategies as st

from metering.ledger.entries import GATEWAY_LOST, Outcome, RecordFields, Settle
from metering.ledger.spool_files import DAMAGED_SUFFIX, SLOT_BYTES, SpoolFile, spool_paths
from metering.prices import Metered, Prices
from tests.cases import each_case
from tests.metering.operations import NOON_UNIX_S, settle

FULLEST = RecordFields(
    status=200,
    kind=Outcome.FAILED,
    error_message="\U0001f9ca" * 500,
    model_asked="\U0001f9ca" * 200,
    end_user="\U0001f9ca" * 128,
    targets_tried=("\U0001f9ca" * 500,),
)
BILLS = [
    settle("r1"),
    settle("r2", prices=Prices(input_micro_usd=3), model="m\n\0", record=FULLEST),
    settle(
        "r3",
        budgets=(),
        time_to_first_token_ms=None,
        metered=Metered(unit="image", num_units=2, micro_usd=7),
    ),
]


def written(directory: Path, bills: list[Settle] = BILLS) -> Path:
    file = SpoolFile.create(directory, "g1")
    for slot, bill in enumerate(bills):
        file.write(slot, bill)
    file.close()
    return file.path


def adopted(path: Path) -> SpoolFile:
    file = SpoolFile.adopt(path)
    assert file is not None
    return file


def test_bills_are_read_as_they_were_written_without_what_was_there_before(tmp_path: Path) -> None:
    file = SpoolFile.create(tmp_path / "mine", "g1")
    assert SpoolFile.adopt(file.path) is None, "its gateway lives"
    path = written(tmp_path / "new")
    assert list(spool_paths(path.parent)) == [path]
    file = adopted(path)
    assert SpoolFile.adopt(path) is None, "one adopts it"
    assert file.read() == BILLS
    file.count(1, 9, 9, 9, 9)
    file.free(1)
    assert file.read() == [BILLS[0], BILLS[2]]
    file.write(1, settle("next", outcome=GATEWAY_LOST))
    _, bill, _ = file.read()
    assert (bill.request_id, bill.completion_tokens) == ("next", 0)
    file.remove()
    assert list(path.parent.iterdir()) == [] and SpoolFile.adopt(path) is None


def test_a_request_that_had_not_ended_is_billed_for_what_had_come(tmp_path: Path) -> None:
    file = SpoolFile.create(tmp_path, "g1")
    file.write(0, settle("running", outcome=GATEWAY_LOST, duration_ms=20))
    file.count(0, 100, 40, 30, 5)
    file.write(1, settle("ending"))
    file.write(2, settle("ending", outcome=GATEWAY_LOST))
    file.write(3, settle("ended", outcome=GATEWAY_LOST))
    file.write(4, settle("ended"))
    os.utime(file.path, (NOON_UNIX_S + 2, NOON_UNIX_S + 2))
    running, *others = file.read()
    assert tuple(running.tokens.values()) == (100, 40, 30, 5)
    assert (running.ended_unix_s, running.duration_ms) == (NOON_UNIX_S + 2, 2020)
    assert others == [settle("ending"), settle("ended")], "their own bills"


def test_files_of_the_release_before_are_read(tmp_path: Path) -> None:
    path = tmp_path / "g1.jsonl"
    fields = {name: one for name, one in dataclasses.asdict(BILLS[0]).items() if name != "record"}
    text = json.dumps(fields).encode()
    path.write_bytes(b"%08x %s\n" % (zlib.crc32(text), text) + b"0123abcd {}\n" + b"torn")
    assert list(spool_paths(tmp_path)) == [path]
    file = adopted(path)
    assert file.read() == [BILLS[0]]
    file.remove()
    assert path.with_suffix(DAMAGED_SUFFIX).exists()


@checks(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(num_bytes=st.integers(min_value=0, max_value=3 * SLOT_BYTES))
def test_of_a_cut_file_the_whole_bills_are_read(tmp_path: Path, num_bytes: int) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:num_bytes])
    file = adopted(path)
    read = file.read()
    assert read == BILLS[: len(read)] and len(read) >= num_bytes // SLOT_BYTES
    file.close()
    path.unlink()


def test_a_damaged_bill_costs_no_other_and_the_file_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path)
    with path.open("r+b") as damaged:
        damaged.seek(SLOT_BYTES + 100)
        damaged.write(b"xyz")
    file = adopted(path)
    assert file.read() == [BILLS[0], BILLS[2]]
    assert "1 bills cannot be read; the file is kept" in caplog.text
    file.remove()
    assert not path.exists() and b"xyz" in path.with_suffix(DAMAGED_SUFFIX).read_bytes()


@each_case(
    "bill",
    [settle(prompt_tokens=2**70), settle(model="\ud800"), settle(model="m" * SLOT_BYTES)],
    ids=["a number", "no text", "too long"],
)
def test_a_bill_that_no_slot_holds_is_refused(tmp_path: Path, bill: Settle) -> None:
    file = SpoolFile.create(tmp_path, "g1")
    with pytest.raises(ValueError):
        file.write(0, bill)
    assert file.read() == []


def test_a_bill_that_the_disk_takes_in_part_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SpoolFile.create(tmp_path, "g1")
    write = os.pwrite

    def half(fd: int, data: bytes, offset: int) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[: len(data) // 2], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half)
        with pytest.raises(OSError):
            file.write(0, BILLS[0])
    file.write(0, BILLS[1])
    assert file.read() == [BILLS[1]]
