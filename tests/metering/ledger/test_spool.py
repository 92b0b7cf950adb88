"""Bills outlive the gateway that could not write them, and are charged once."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference.backoff import Backoff
from metering.ledger import writer
from metering.ledger.entries import GATEWAY_LOST
from metering.ledger.spool import Spool
from metering.ledger.spool_files import SLOT_BYTES, SpoolFile
from metering.models import LedgerEntry, Reservation, UsageHour
from tests.metering.operations import NOON_UNIX_S, make_budget, settle
from tests.metering.writer_support import LONG_S, Gateway, amounts, wait_until

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
    first.begin(settle("runs", outcome=GATEWAY_LOST))
    written = first.settle(settle("runs"))
    first.settle(settle("new"))
    first.settle(OLD)
    assert first.depth == 3
    written()
    assert first.depth == 2
    (path,) = first.files()
    assert path.stat().st_size < 3 * SLOT_BYTES, "the slot of the open request is used again"
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
    third.begin(settle("runs", outcome=GATEWAY_LOST))
    third.close()
    assert files(tmp_path) == ["g3.bills"], "that of the open request"


def test_a_full_disk_speaks_and_is_tried_again(
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
    second = spool_in(tmp_path, "g2")
    SpoolFile.create(tmp_path, "gone").close()
    for call in ("read", "remove"):  # a file that cannot be read or deleted stays
        with monkeypatch.context() as patch:
            patch.setattr(SpoolFile, call, full)
            assert second.adopt(tmp_path / "gone.bills") == []
        assert "No space left" in caplog.text and (tmp_path / "gone.bills").exists()
        caplog.clear()
    bills = second.adopt(tmp_path / "g1.bills")
    assert {bill.request_id for bill, _ in bills} == {"r0", "r1"}


def test_without_a_file_requests_run_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SpoolFile, "create", full)
        spool = spool_in(tmp_path, "g1")
        spool.begin(settle())(1, 2, 3, 4)
        spool.settle(settle())
        assert spool.problem is not None
    spool.create()
    spool.keep()
    assert spool.problem is None and files(tmp_path) == ["g1.bills"]
    count = spool.begin(settle("r2", outcome=GATEWAY_LOST))
    monkeypatch.setattr(SpoolFile, "count", full)
    count(1, 2, 3, 4)
    assert spool.problem is not None


@pytest.fixture
def start(using: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Starts a gateway's writer; all are stopped in the end."""
    monkeypatch.setattr(writer, "SPOOLED_AFTER_S", 0.01)
    monkeypatch.setattr(writer, "ADOPT_EVERY_S", 0.02)
    monkeypatch.setattr(writer, "BACKOFF", Backoff(first_s=0.01, max_s=0.02))
    started: list[Gateway] = []
    with asyncio.Runner() as runner:

        def start(gateway_id: str, *, is_away: bool = False, **options: Any) -> Gateway:
            options = {"gateway_id": gateway_id, "spool_directory": tmp_path / "spool", **options}
            gateway = Gateway(using, runner, **options)
            gateway.database.is_away = is_away
            gateway.start()
            started.append(gateway)
            return gateway

        yield start
        for gateway in started:
            gateway.run(gateway.writer.stop(LONG_S))


def stop_without_database(gateway: Gateway, path: Path) -> None:
    def is_closed() -> bool:
        file = SpoolFile.adopt(path)
        if file is not None:
            file.close()
        return file is not None

    gateway.run(gateway.writer.stop(0.05))
    wait_until(is_closed)  # its thread may take longer


def entries(using: str) -> list[str]:
    return sorted(LedgerEntry.objects.using(using).values_list("request_id", flat=True))


def test_the_next_gateway_writes_them_once_the_database_is_back(
    using: str, start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, directory = make_budget(using), tmp_path / "spool"
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
    stop_without_database(first, directory / "gone.bills")
    assert files(directory) == ["gone.bills"] and entries(using) == []
    shutil.copy(directory / "gone.bills", directory / "more.bills")
    second = start("g1", is_away=True, max_queued=2)
    wait_until(lambda: second.writer.num_spooled > 0)
    assert second.writer.depth == 2 and second.writer.is_full, "no more than it takes"
    second.run(second.writer.stop(0.05))
    assert {"gone.bills", "more.bills"} <= {*files(directory)} and entries(using) == []
    third = start("g2")
    wait_until(lambda: files(directory, but="g2") == [])
    assert entries(using) == ["r1", "r2"]
    assert amounts(using, id) == (70, 0) and not Reservation.objects.using(using).exists()
    assert sum(hour.requests for hour in UsageHour.objects.using(using).all()) == 2
    third.run(third.writer.stop(LONG_S))
    assert files(directory) == []
