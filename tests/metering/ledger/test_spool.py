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
from metering.ledger.spool_files import SpoolFile
from metering.models import LedgerEntry, Reservation, UsageHour
from tests.metering.operations import NOON_UNIX_S, make_budget, settle
from tests.metering.writer_support import LONG_S, Gateway, amounts, wait_until


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SPOOLED_AFTER_S", 0.01)
    monkeypatch.setattr(writer, "ADOPT_EVERY_S", 0.02)
    monkeypatch.setattr(writer, "BACKOFF", Backoff(first_s=0.01, max_s=0.02))


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "ledger-spool"


@pytest.fixture
def start(using: str, runner: asyncio.Runner, directory: Path) -> Iterator[Any]:
    """Starts a gateway's writer; all are stopped in the end."""
    started: list[Gateway] = []

    def start(gateway_id: str = "g1", *, is_away: bool = False, **options: Any) -> Gateway:
        gateway = Gateway(
            using, runner, gateway_id=gateway_id, spool_directory=directory, **options
        )
        gateway.database.is_away = is_away
        gateway.start()
        started.append(gateway)
        return gateway

    yield start
    for gateway in started:
        gateway.database.answers.set()
        gateway.run(gateway.writer.stop(LONG_S))


def files(directory: Path, but: str = "") -> list[str]:
    """``but``: whose file does not count."""
    return sorted(path.name for path in directory.glob("*") if path.stem != but)


def stopped_without_database(start: Any, directory: Path, *bills: Any) -> None:
    """A gateway that ended, with these bills in its file."""
    gateway = start("gone", is_away=True)
    for bill in bills:
        gateway.writer.settle(bill)
    gateway.run(gateway.writer.stop(0.05))
    wait_until(lambda: is_closed(directory / "gone.bills"))  # its thread may take longer


def is_closed(path: Path) -> bool:
    """No gateway has this file open."""
    file = SpoolFile.adopt(path)
    if file is None:
        return False
    file.close()
    return True


def entries(using: str) -> list[str]:
    return sorted(LedgerEntry.objects.using(using).values_list("request_id", flat=True))


def test_a_gateway_that_stops_leaves_no_file(using: str, start: Any, directory: Path) -> None:
    gateway = start()
    gateway.writer.begin(settle(budgets=(), outcome=GATEWAY_LOST))
    gateway.writer.settle(settle(budgets=()))
    gateway.flush()
    assert files(directory) == ["g1.bills"]
    gateway.run(gateway.writer.stop(LONG_S))
    assert entries(using) == ["r1"]
    assert files(directory) == []


def test_the_next_gateway_writes_them_once_the_database_is_back(
    using: str, start: Any, directory: Path, tmp_path: Path
) -> None:
    id = make_budget(using)
    first = start("gone")
    first.reserve("r1", budgets=(id,))
    first.database.is_away = True
    first.writer.settle(settle("r1", budgets=(id,)))
    wait_until(lambda: first.writer.num_spooled == 1)
    first.writer.settle(settle("r2", budgets=()))
    wait_until(lambda: first.writer.num_spooled == 2)
    assert SpoolFile.adopt(directory / "gone.bills") is None, "its gateway lives"
    first.run(first.writer.stop(0.05))
    wait_until(lambda: is_closed(directory / "gone.bills"))  # its thread may take longer
    assert files(directory) == ["gone.bills"] and entries(using) == []
    copy = shutil.copy(directory / "gone.bills", tmp_path / "copy")
    second = start("g1", is_away=True)
    wait_until(lambda: second.writer.num_spooled == 2)
    second.run(second.writer.stop(0.05))
    assert files(directory) != [] and entries(using) == []
    start("g2")
    wait_until(lambda: files(directory, but="g2") == [])
    assert entries(using) == ["r1", "r2"]
    assert amounts(using, id) == (70, 0) and not Reservation.objects.using(using).exists()
    shutil.copy(copy, directory / "restored.bills")
    wait_until(lambda: files(directory, but="g2") == [])
    assert amounts(using, id) == (70, 0)
    hours = UsageHour.objects.using(using).all()
    assert sum(hour.requests for hour in hours) == 2


def test_what_the_ledger_may_have_forgotten_is_not_charged_again(
    using: str, start: Any, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = settle("old", budgets=(), ended_unix_s=NOON_UNIX_S - 1)
    stopped_without_database(start, directory, old, settle("new", budgets=()))
    start("g2", oldest_unix_s=lambda: NOON_UNIX_S)
    wait_until(lambda: files(directory, but="g2") == [])
    assert entries(using) == ["new"]
    assert "1 bills are older than the ledger's retention" in caplog.text


def test_a_full_disk_speaks_and_is_tried_again(
    using: str,
    start: Any,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gateway = start(is_away=True)
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(SpoolFile, "write", full)
        gateway.writer.settle(settle("r1", budgets=()))
        wait_until(lambda: gateway.writer.spool_problem is not None)
        gateway.writer.settle(settle("r2", budgets=()))
    wait_until(lambda: gateway.writer.num_spooled == 2)
    wait_until(lambda: gateway.writer.spool_problem is None)
    lines = [one.getMessage() for one in caplog.records if "No space left" in one.getMessage()]
    assert len(lines) == 1 and str(directory) in lines[0]
    gateway.database.is_away = False
    wait_until(lambda: entries(using) == ["r1", "r2"])


def test_no_more_is_adopted_than_the_writer_takes(using: str, start: Any, directory: Path) -> None:
    stopped_without_database(start, directory, settle("r1", budgets=()), settle("r2", budgets=()))
    (directory / "gone.bills").rename(directory / "a.bills")
    stopped_without_database(start, directory, settle("r3", budgets=()))
    second = start("g2", is_away=True, max_queued=2)
    wait_until(lambda: second.writer.num_spooled == 2 and second.writer.is_full)
    assert files(directory, but="g2") == ["a.bills", "gone.bills"]
    second.database.is_away = False
    wait_until(lambda: files(directory, but="g2") == [])
    assert entries(using) == ["r1", "r2", "r3"]


def test_a_file_that_cannot_be_read_or_deleted_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    SpoolFile.create(tmp_path, "gone").close()
    spool = Spool(tmp_path, "g1", oldest_unix_s=lambda: 0.0)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for name in ("read", "remove"):
        with monkeypatch.context() as patch:
            patch.setattr(SpoolFile, name, broken)
            assert spool.adopt(tmp_path / "gone.bills") == []
    lines = [one.getMessage() for one in caplog.records if "Input/output" in one.getMessage()]
    assert len(lines) == 2 and (tmp_path / "gone.bills").exists()
