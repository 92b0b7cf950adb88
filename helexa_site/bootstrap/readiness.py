"""Waits until the server answers over HTTP.

Reads the fleet only to show the load's progress and obstacles.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis

from fleet.catalogue import CatalogueEntry
from fleet.errors import SnapshotUnavailableError
from fleet.live import reading as live
from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.placement import Reject, place
from helexa_site.bootstrap.console import print_step
from helexa_site.instance import INSTANCE_HEADER, instance_id
from inference.protocol.heartbeat import ReplicaStatus
from inference.protocol.load_progress import LoadProgress
from inference.settings.gateway import API_KEY, SERVE_KEY

SHOWN_TENTHS = 10
BYTES_PER_MB = 1_000_000


class LoadProgressView:
    """Prints one line when the stage changes, and one for each tenth of it; failures in their
    words."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._shown = ""
        self.is_ready = False

    def update(self, replicas: Sequence[ReplicaView]) -> None:
        self.is_ready = any(replica.status is ReplicaStatus.READY for replica in replicas)
        for replica in replicas:
            line = replica_line(replica)
            if line and line != self._shown:
                self._shown = line
                print_step("model", f"{self._model}: {line}")


def replica_line(replica: ReplicaView) -> str:
    if replica.status is ReplicaStatus.FAILED and replica.failure is not None:
        return (
            f"cannot be loaded: {replica.failure.message} "
            "(everything else stays up; it is tried again, and the admin has a Load action)"
        )
    if replica.status is ReplicaStatus.READY and replica.report is not None:
        return f"loaded in {replica.report.load_seconds:.1f} s; {replica.report.quantization}"
    if replica.progress is not None:
        return _progress_line(replica.progress)
    return ""


def _progress_line(progress: LoadProgress) -> str:
    stage = progress.stage.value
    if not progress.total:
        return stage
    tenths = SHOWN_TENTHS * progress.done // progress.total
    if progress.unit == "bytes":
        return f"{stage} {10 * tenths} % of {progress.total / BYTES_PER_MB:.0f} MB"
    return f"{stage} {10 * tenths} %"


POLL_INTERVAL_S = 0.1
HTTP_TIMEOUT_S = 120.0
COMPLAIN_EVERY_S = 30.0
SELF_TEST_HEADER = "Helexa-Self-Test"
"""The header of ``serve``'s own request, with its own key: it is neither billed nor counted."""
DEFAULT_MODEL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France?"
NOT_YET = (OSError, ValueError, KeyError)
"""Errors of an endpoint that is not ready yet."""
HOSTS_JOIN_S = 20.0
"""How long the start waits for a host that can run the default model."""
WAITS_FOR_A_HOST = ("model_recovering", "no_neuron", "cuda_unavailable")

EnsureWanted = Callable[[], None]
"""Raises when the start is being stopped."""


def wait_for_gateway(
    url: str, data_dir: Path, ensure_wanted: EnsureWanted, *, needs_neuron: bool = True
) -> None:
    """Returns once the gateway of this data directory reports Redis, the database and a neuron
    online. The answer of another instance on its port is ignored."""
    ignored = {"model_away"} if needs_neuron else {"model_away", "neuron_away"}

    def is_up() -> bool:
        health = _get_json(f"{url}/health", instance_id(data_dir))
        is_missing = needs_neuron and not health["neurons"]
        return not is_missing and all(reason["code"] in ignored for reason in health["reasons"])

    complaint = "not answering yet; its log is in the data directory's logs"
    _poll(is_up, ensure_wanted, "gateway", complaint)


def wait_for_answer(url: str, entry: CatalogueEntry, ensure_wanted: EnsureWanted) -> None:
    """Returns once the default model answers a request, or has to wait for a host that is offline,
    not upgraded yet or without its cards; shows its load's progress meanwhile. ``entry`` is the
    model's.

    A failed load is printed; the wait continues, because the operator can repair and retry it.
    """
    view = LoadProgressView(entry.name)
    absence = HostAbsence(entry)

    def is_settled() -> bool:
        snapshot = live.read_snapshot_sync(live.redis_client())
        view.update(snapshot.replicas_of(entry.name))
        if absence.is_lasting(snapshot, time.monotonic()):
            return True
        return view.is_ready and not absence.reason and bool(_ask(url))

    _poll(is_settled, ensure_wanted, "model", "no answer yet")
    print_step("model", absence.reason or f"{entry.name} answers")


class HostAbsence:
    """Whether, and for how long, a model has waited for a host that is offline, not upgraded yet or
    without its cards. Hosts join again a few seconds after this machine's Redis has started."""

    def __init__(self, entry: CatalogueEntry) -> None:
        self._entry = entry
        self._since_s: float | None = None
        self.reason = ""
        """Why no host serves or loads it now, in words; empty where one does."""

    def is_lasting(self, snapshot: FleetSnapshot, now_s: float) -> bool:
        decision = place(self._entry, snapshot)
        if not isinstance(decision, Reject) or decision.code not in WAITS_FOR_A_HOST:
            self._since_s, self.reason = None, ""
            return False
        self.reason = decision.message
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= HOSTS_JOIN_S


def curl_line(url: str) -> str:
    key = '-H "Authorization: Bearer $HELEXA_API_KEY" ' if API_KEY.read(os.environ) else ""
    return (
        f"curl {url}/v1/chat/completions {key}"
        f"-H 'Content-Type: application/json' -d '{json.dumps(_question())}'"
    )


def _question() -> dict[str, Any]:
    return {
        "model": DEFAULT_MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
    }


def _ask(url: str) -> str:
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(_question() | {"max_tokens": 16}).encode(),
        headers={"Content-Type": "application/json", SELF_TEST_HEADER: "1"} | _key_header(),
    )
    with _opener().open(request, timeout=HTTP_TIMEOUT_S) as response:
        answer = json.load(response)
    return str(answer["choices"][0]["message"]["content"])


def _get_json(url: str, instance: str | None) -> dict[str, Any]:
    """The body, also of a 503: /health lists failures in it. Raises ``ValueError`` where another
    instance answers."""
    request = urllib.request.Request(url, headers=_key_header())
    try:
        answer: Any = _opener().open(request, timeout=HTTP_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        if answer.headers.get(INSTANCE_HEADER) != instance:
            raise ValueError("another helexa, with another data directory, answers there")
        body = answer.read()
    found: dict[str, Any] = json.loads(body)
    return found


def _opener() -> urllib.request.OpenerDirector:
    """Connects directly to this machine, despite proxies in the environment."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _key_header() -> dict[str, str]:
    key = SERVE_KEY.read(os.environ)
    return {"Authorization": f"Bearer {key}"} if key else {}


def _poll(
    is_done: Callable[[], bool], ensure_wanted: EnsureWanted, step: str, complaint: str
) -> None:
    """Polls until ``is_done``. An error in ``NOT_YET`` means not yet, and is printed now and
    then."""
    complain_at_s = time.monotonic() + COMPLAIN_EVERY_S
    while True:
        done, reason = False, ""
        try:
            done = is_done()
        except (*NOT_YET, redis.RedisError, SnapshotUnavailableError) as error:
            reason = str(error)
        ensure_wanted()
        if done:
            return
        if reason and time.monotonic() > complain_at_s:
            print_step(step, f"{complaint} ({reason})")
            complain_at_s = time.monotonic() + COMPLAIN_EVERY_S
        time.sleep(POLL_INTERVAL_S)
