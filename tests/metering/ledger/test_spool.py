"""Bills outlive the gateway that could not write them, and are charged once; their files may be
torn, damaged or on a full disk."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as checks
from hypothesis import strategies as st

from inference.backoff import Backoff
from metering.ledger import writer
from metering.ledger.entries import GATEWAY_LOST, Outcome, RecordFields, Settle
from metering.ledger.spool import DAMAGED_SUFFIX, SLOT_BYTES, Spool, SpoolFile, spool_paths
from metering.models import LedgerEntry, Reservation, UsageHour
from metering.money import Metered, Prices
from tests.metering.databases import LONG_S, Gateway, amounts, wait_until
from tests.metering.operations import NOON_UNIX_S, make_budget, settle

SOME = (1, 2, 3, 4)
OLD = settle("old", ended_unix_s=NOON_UNIX_S - 1)


def files(directory: Path, but: str = "") -> list[str]:
    """``but``: whose file does not count."""
    return sorted(path.name for path in directory.glob("*") if path.stem != but)


def spool_in(directory: Path, gateway_id: str) -> Spool:
    spool = Spool(directory, gateway_id, oldest_unix_s=lambda: NOON_UNIX_S)
    spool.create()
    return spool


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_holds_what_is_not_written_and_goes_with_the_last_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = spool_in(tmp_path, "g1")
    first.begin(settle("runs", outcome=GATEWAY_LOST), lambda: SOME)
    written = first.settle(settle("runs"))
    first.settle(settle("new"))
    first.settle(OLD)
    assert first.depth == 3
    written()
    assert first.depth == 2
    (path,) = first.files()
    assert path.stat().st_size < 3 * SLOT_BYTES, "a request has one slot"
    second = spool_in(tmp_path, "g2")
    assert second.adopt(path) == [], "its gateway lives"
    first.close()
    ((bill, written),) = second.adopt(path)
    assert (bill.request_id, second.depth) == ("new", 1), "the ledger may have forgotten the other"
    assert "1 bills are older than the ledger's retention" in caplog.text
    second.close()
    third = spool_in(tmp_path, "g3")
    for _, written in third.adopt(path):
        written()
    assert third.depth == 0
    third.begin(settle("runs", outcome=GATEWAY_LOST), lambda: SOME)
    third.close()
    assert files(tmp_path) == ["g3.bills"], "that of the open request"
    file = adopted(tmp_path / "g3.bills")
    assert tuple(file.read()[0].tokens.values()) == SOME, "counted last when it was closed"


def test_a_full_disk_speaks_is_tried_again_and_hinders_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = spool_in(tmp_path, "g1")
    with monkeypatch.context() as patch:
        patch.setattr(SpoolFile, "write", full)
        for number in range(2):
            spool.settle(settle(f"r{number}"))
        spool.keep()
        assert spool.problem is not None and str(tmp_path) in spool.problem
    lines = [one.getMessage() for one in caplog.records if "No space left" in one.getMessage()]
    assert len(lines) == 1
    spool.keep()
    assert spool.problem is None
    spool.close()
    with monkeypatch.context() as patch:
        patch.setattr(SpoolFile, "create", full)
        second = spool_in(tmp_path, "g2")
        second.begin(settle(), lambda: SOME)
        assert not second.count()
        second.settle(settle())
        assert second.problem is not None
    second.create()
    second.keep()
    assert second.problem is None and files(tmp_path) == ["g1.bills", "g2.bills"]
    second.begin(settle("r2", outcome=GATEWAY_LOST), lambda: SOME)
    SpoolFile.create(tmp_path, "gone").close()
    for call in ("read", "remove"):  # a file that cannot be read or deleted stays
        with monkeypatch.context() as patch:
            patch.setattr(SpoolFile, call, full)
            assert second.adopt(tmp_path / "gone.bills") == []
        assert "No space left" in caplog.text and (tmp_path / "gone.bills").exists()
        caplog.clear()
    bills = second.adopt(tmp_path / "g1.bills")
    assert {bill.request_id for bill, _ in bills} == {"r0", "r1"}
    monkeypatch.setattr(SpoolFile, "count", full)
    assert second.count() and second.problem is not None


def test_the_next_gateway_writes_them_once_the_database_is_back(
    using: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SPOOLED_AFTER_S", 0.01)
    monkeypatch.setattr(writer, "ADOPT_EVERY_S", 0.02)
    monkeypatch.setattr(writer, "BACKOFF", Backoff(first_s=0.01, max_s=0.02))
    id, directory = make_budget(using), tmp_path / "spool"
    started: list[Gateway] = []

    def start(gateway_id: str, *, is_away: bool = False, **options: Any) -> Gateway:
        options |= {"gateway_id": gateway_id, "spool_directory": directory}
        started.append(Gateway(using, runner, **options))
        started[-1].database.is_away = is_away
        started[-1].start()
        return started[-1]

    def is_closed() -> bool:
        file = SpoolFile.adopt(directory / "gone.bills")
        if file is not None:
            file.close()
        return file is not None

    def entries() -> list[str]:
        return sorted(LedgerEntry.objects.using(using).values_list("request_id", flat=True))

    with asyncio.Runner() as runner:
        first = start("gone")
        first.reserve("r1", budgets=(id,))
        first.database.is_away = True
        with monkeypatch.context() as patch:
            patch.setattr(SpoolFile, "write", full)
            first.writer.settle(settle("r1", budgets=(id,)))
            assert first.writer.spool_problem is not None
        wait_until(lambda: first.writer.spool_problem is None)
        first.writer.settle(settle("r2", budgets=()))
        wait_until(lambda: first.writer.num_spooled == 2)
        first.writer.close(0.05)
        wait_until(is_closed)  # its thread may take longer
        assert files(directory) == ["gone.bills"] and entries() == []
        shutil.copy(directory / "gone.bills", directory / "more.bills")
        second = start("g1", is_away=True, max_queued=2)
        wait_until(lambda: second.writer.num_spooled > 0)
        assert second.writer.depth == 2 and second.writer.is_full, "no more than it takes"
        second.writer.close(0.05)
        assert {"gone.bills", "more.bills"} <= {*files(directory)} and entries() == []
        start("g2")
        wait_until(lambda: files(directory, but="g2") == [])
        assert entries() == ["r1", "r2"]
        assert amounts(using, id) == (70, 0) and not Reservation.objects.using(using).exists()
        assert sum(hour.requests for hour in UsageHour.objects.using(using).all()) == 2
        for gateway in started[::-1]:
            gateway.writer.close(LONG_S)
        assert files(directory) == []


async def test_the_tokens_of_open_requests_come_into_the_file_until_they_have_ended(
    tmp_path: Path,
) -> None:
    ledger, so_far = writer.LedgerWriter("g1", spool_directory=tmp_path), (0, 0, 0, 0)
    assert ledger._spool is not None
    ledger._spool.create()  # no thread writes bills
    (path,) = ledger._spool.files()
    ledger.begin(settle("r1", outcome=GATEWAY_LOST), lambda: so_far)
    for so_far in ((7, 0, 1, 0), (7, 0, 2, 0)):
        async with asyncio.timeout(LONG_S):
            while struct.unpack_from("<4Q", path.read_bytes()) != so_far:
                await asyncio.sleep(0.01)
    ledger.settle(settle("r1"))
    async with asyncio.timeout(LONG_S):
        while ledger._is_counting:
            await asyncio.sleep(0.01)
    ledger._spool.close()


FULLEST = RecordFields(
    status=200,
    kind=Outcome.FAILED,
    error_message="\U0001f9ca" * 500,
    model_asked="\U0001f9ca" * 200,
    end_user="\U0001f9ca" * 128,
    targets_tried=("\U0001f9ca" * 500,),
)
IMAGES = Metered(unit="image", num_units=2, micro_usd=7)
BILLS = [
    settle("r1"),
    settle("r2", prices=Prices(input_micro_usd=3), model="m\n\0", record=FULLEST),
    settle("r3", budgets=(), time_to_first_token_ms=None, metered=IMAGES),
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


def test_bills_are_read_as_they_were_written_and_of_what_had_not_ended_what_had_come(
    tmp_path: Path,
) -> None:
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
    file.write(1, settle("next", outcome=GATEWAY_LOST, duration_ms=20))
    assert file.read()[1].completion_tokens == 0, "without what was there before"
    file.count(1, 100, 40, 30, 5)
    file.write(3, settle("ended", outcome=GATEWAY_LOST))
    file.write(3, settle("ended"))
    os.utime(file.path, (NOON_UNIX_S + 2, NOON_UNIX_S + 2))
    _, running, _, *others = file.read()
    assert tuple(running.tokens.values()) == (100, 40, 30, 5)
    assert (running.ended_unix_s, running.duration_ms) == (NOON_UNIX_S + 2, 2020)
    assert others == [settle("ended")], "its own bill"
    file.remove()
    assert list(path.parent.iterdir()) == [] and SpoolFile.adopt(path) is None


def test_damaged_bills_cost_no_other_and_are_kept_and_what_no_slot_holds_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "new")
    with path.open("r+b") as damaged:
        damaged.seek(SLOT_BYTES + 100)
        damaged.write(b"xyz")
    file = adopted(path)
    assert file.read() == [BILLS[0], BILLS[2]]
    assert "1 bills cannot be read; the file is kept" in caplog.text
    file.remove()
    assert not path.exists() and b"xyz" in path.with_suffix(DAMAGED_SUFFIX).read_bytes()
    path = tmp_path / "g1.jsonl"  # of the release before
    fields = {name: one for name, one in msgspec.to_builtins(BILLS[0]).items() if name != "record"}
    text = json.dumps(fields).encode()
    path.write_bytes(b"%08x %s\n" % (zlib.crc32(text), text) + b"0123abcd {}\n" + b"torn")
    assert list(spool_paths(tmp_path)) == [path]
    file = adopted(path)
    assert file.read() == [BILLS[0]]
    file.remove()
    assert path.with_suffix(DAMAGED_SUFFIX).exists()
    file, write = SpoolFile.create(tmp_path, "g2"), os.pwrite

    def half(fd: int, data: bytes, offset: int) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[: len(data) // 2], offset)

    for changes in ({"prompt_tokens": 2**70}, {"model": "\ud800"}, {"model": "m" * SLOT_BYTES}):
        with pytest.raises(ValueError):
            file.write(0, settle(**changes))
        assert file.read() == []
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(os, "pwrite", half)
        file.write(0, BILLS[0])
    file.write(0, BILLS[1])
    assert file.read() == [BILLS[1]]
