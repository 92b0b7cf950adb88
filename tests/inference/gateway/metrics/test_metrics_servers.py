"""Scraping a gateway that runs as a process."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.gateway.measure import PATH
from benchmarks.gateway.processes import HOST
from benchmarks.gateway.stage import MODEL, Stage, stage
from benchmarks.ports import free_port

pytestmark = pytest.mark.slow

GIVE_UP_S = 60.0
QUESTION = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def there(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    database = shutil.copy(migrated_sqlite, tmp_path_factory.mktemp("stage"))
    with stage(database_url=f"sqlite:///{database}") as made:
        yield made


def key(there: Stage) -> dict[str, str]:
    return {"Authorization": there.authorization}


def scrape(port: int) -> list[str]:
    response = httpx.get(f"http://{HOST}:{port}/metrics", timeout=30)
    response.raise_for_status()
    return response.text.splitlines()


def wait_for(port: int, line: str) -> None:
    give_up_s = time.monotonic() + GIVE_UP_S
    while line not in (lines := scrape(port)):
        assert time.monotonic() < give_up_s, "\n".join(lines)
        time.sleep(0.1)


def test_a_running_gateway_is_scraped(there: Stage) -> None:
    port = free_port()
    gateway = there.start_gateway("daphne", metrics_port=port)
    answer = httpx.post(
        f"http://{HOST}:{gateway.port}{PATH}", json=QUESTION, headers=key(there), timeout=30
    )
    assert answer.status_code == 200, answer.text
    wait_for(port, f'helexa_replica_status{{model="{MODEL}",node="bench",status="ready"}} 1.0')
    wait_for(port, 'helexa_load_jobs{state="pending"} 0.0')
    wait_for(port, f'cortex_requests_total{{model="{MODEL}",node="bench"}} 1.0')
    wait_for(port, f'cortex_completion_tokens_total{{model="{MODEL}",node="bench"}} 3.0')
    # 7 and 3 tokens; the key's public prefix stands for it.
    prefix, _, _ = there.authorization.removeprefix("Bearer ").rpartition("-")
    wait_for(port, f'cortex_spend_tokens_total{{account="bench",key="{prefix}"}} 10.0')
    assert there.authorization.removeprefix("Bearer ") not in "".join(scrape(port))
    wait_for(port, "helexa_ledger_queue_operations 0.0")
    wait_for(port, "helexa_reservations_open 0.0")
    gateway.stop()
    with pytest.raises(httpx.TransportError):
        scrape(port)
