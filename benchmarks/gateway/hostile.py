"""scripts/bench-hostile: what an attack of an invited host costs the others.

A gateway, a control, an honest neuron without a model and a hostile one, each on a real Redis. Of
each attack: honest clients in a closed loop without it, then while it is repeated; how much memory
the gateway, the control and Redis gain, and the gateway's CPU time a request. An answer of theirs
that is not 200 and whole ends the run. The exit status is 1 where an attack is over a bound: the
p99 grows by more than 100 ms, or one of the processes by more than 50 MB.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import redis
from rich.console import Console
from rich.table import Table

from benchmarks.gateway.growth import MAX_GROWTH_BYTES, MemoryGrowth
from benchmarks.gateway.hostile_host import ATTACKS, EVIL, LURE, Evil, heartbeat, is_lured
from benchmarks.gateway.measure import Cell, Reading, measure
from benchmarks.gateway.processes import HOST, ProcessFailedError, RunningProcess
from benchmarks.gateway.stage import MODEL, Stage, StageOptions, stage
from fleet.redis_users import user_name
from inference.protocol import keys
from inference.protocol.heartbeat import encode_heartbeat

MAX_GROWTH_MS = 100.0
WAIT_LIMIT_S = 60.0
PAUSE_S = 0.05
INVITE = """
from fleet import services
from fleet.live.load_orders import load_orders
from fleet.models import CatalogueModel, Invitation
from fleet.redis_users import secret_hash
from metering.actor import COMMAND
if not CatalogueModel.objects.filter(name={lure!r}).exists():
    services.catalogue_model_create(actor=COMMAND, name={lure!r}, source="path:/nowhere")
hashed = {{"secret_sha256": secret_hash({secret!r}), "cut_off_at": None, "cut_off_reason": ""}}
Invitation.objects.update_or_create(neuron_name={evil!r}, defaults=hashed)
services.neuron_expect(actor=COMMAND, neuron_name={evil!r})
services.redis_users_apply()
print(load_orders().order(neuron={evil!r}, model={lure!r}))
"""


@dataclass(frozen=True, slots=True)
class Beside:
    """One attack: honest answers without and with it."""

    quiet: Reading
    attacked: Reading
    grown: dict[str, int]
    """The most bytes that each process gained."""

    @property
    def growth_ms(self) -> float:
        return self.attacked.p99_ms - self.quiet.p99_ms


def main() -> None:
    options = _parser().parse_args()
    console = Console(stderr=True)
    results: dict[str, Beside] = {}
    try:
        with stage(StageOptions()) as there:
            gateway = there.start_gateway("daphne")
            control = there.start_control()
            resident = {
                "gateway": gateway.resident_bytes,
                "control": control.resident_bytes,
                "redis": there.redis_process.resident_bytes,
            }
            for name in options.attacks:
                console.print(name)
                results[name] = _beside(there, gateway, name, options, resident)
    except ProcessFailedError as error:
        sys.exit(f"scripts/bench-hostile: {error}")
    _print(results)
    if over := over_bounds(results):
        sys.exit(f"scripts/bench-hostile: over the bounds: {'; '.join(over)}")


def over_bounds(results: Mapping[str, Beside]) -> list[str]:
    """The attacks that are over a bound, each with all of its bounds. Pure."""
    return [
        f"{name} ({', '.join(problems)})"
        for name, one in results.items()
        if (problems := _problems(one))
    ]


def _beside(
    there: Stage,
    gateway: RunningProcess,
    name: str,
    options: argparse.Namespace,
    resident: dict[str, Callable[[], int]],
) -> Beside:
    def ask() -> Reading:
        return measure(
            gateway,
            Cell(streams=False, num_clients=options.clients),
            model=MODEL,
            authorization=there.authorization,
            num_tokens=16,
            warm_up_s=options.warm_up,
            seconds=options.seconds,
        )

    quiet = ask()
    growth = MemoryGrowth(resident)
    with growth.peaks() as grown, _attacking(there, gateway, name):
        attacked = ask()
    return Beside(quiet, attacked, grown)


@contextmanager
def _attacking(there: Stage, gateway: RunningProcess, name: str) -> Iterator[None]:
    """Repeats the attack until the ``with`` ends, or the host is cut off."""
    evil = _invited(there)
    threading.Thread(target=_ask_the_lure, args=(there, gateway), daemon=True).start()
    _wait(lambda: is_lured(evil), "the gateway sent the hostile host no request")
    # What the attack before left in its stream, the largest id for one, would stop this one.
    evil.client.delete(evil.events)
    _wait(lambda: evil.client.exists(evil.events), "the gateway did not make its stream anew")
    ended = threading.Event()

    def attack() -> None:
        with suppress(redis.AuthenticationError):  # it is cut off
            while not ended.wait(PAUSE_S):
                with suppress(redis.ConnectionError):  # Redis has closed it
                    ATTACKS[name](evil)

    with ThreadPoolExecutor(1) as pool:
        attacker = pool.submit(attack)
        try:
            yield
        finally:
            ended.set()
    evil.client.close()
    if problem := attacker.exception():
        raise ProcessFailedError(f"the attack itself failed, so it shows nothing: {problem!r}")


def _wait(is_so: Callable[[], Any], otherwise: str) -> None:
    """Raises ``ProcessFailedError``."""
    deadline_s = time.monotonic() + WAIT_LIMIT_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise ProcessFailedError(otherwise)
        time.sleep(PAUSE_S)


def _invited(there: Stage) -> Evil:
    secret = secrets.token_urlsafe(32)
    order = there.run_python(INVITE.format(lure=LURE, evil=EVIL, secret=secret))
    scheme, _, rest = there.redis_url.partition("://")
    url = f"{scheme}://{user_name(EVIL)}:{secret}@{rest.rpartition('@')[2]}"
    client = redis.Redis.from_url(url, socket_timeout=WAIT_LIMIT_S)
    client.set(keys.heartbeat_key(EVIL), encode_heartbeat(heartbeat(order)), ex=600)
    return Evil(client)


def _ask_the_lure(there: Stage, gateway: RunningProcess) -> None:
    """Whatever becomes of it."""
    body = {"model": LURE, "messages": [{"role": "user", "content": "Hi"}]}
    request = urllib.request.Request(
        f"http://{HOST}:{gateway.port}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": there.authorization},
    )
    with suppress(urllib.error.URLError, OSError):
        urllib.request.urlopen(request, timeout=WAIT_LIMIT_S).close()


def _print(results: dict[str, Beside]) -> None:
    table = Table("attack", "answers", "p99 without", "beside it", "grew by", "CPU a request")
    for process in ("gateway", "control", "redis"):
        table.add_column(f"{process} +MB")
    table.add_column("")
    for name, one in results.items():
        table.add_row(
            name,
            f"{one.quiet.num_requests} / {one.attacked.num_requests}",
            f"{one.quiet.p99_ms:.0f} ms",
            f"{one.attacked.p99_ms:.0f} ms",
            f"{one.growth_ms:+.0f} ms",
            f"{one.quiet.cpu_ms_per_request:.1f} / {one.attacked.cpu_ms_per_request:.1f} ms",
            *(f"{grown / 1e6:.0f}" for grown in one.grown.values()),
            ", ".join(_problems(one)),
        )
    Console().print(table)


def _problems(one: Beside) -> list[str]:
    slow = [f"over {MAX_GROWTH_MS:.0f} ms"] if one.growth_ms > MAX_GROWTH_MS else []
    large = [name for name, grown in one.grown.items() if grown > MAX_GROWTH_BYTES]
    return slow + [f"{name} over {MAX_GROWTH_BYTES // 10**6} MB" for name in large]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench-hostile", description=__doc__)
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--clients", type=int, default=4, help="honest ones at once")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds before it")
    return parser


if __name__ == "__main__":
    main()
