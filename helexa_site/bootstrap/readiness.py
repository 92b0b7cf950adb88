"""Prepares the database, then waits until the server answers over HTTP. Models are imported inside
the functions: only after ``django.setup()``."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import django
import redis
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import DatabaseError, connection, connections

from fleet.catalogue import CatalogueEntry
from fleet.errors import SnapshotUnavailableError
from fleet.live import reading as live
from fleet.live.snapshot import FleetSnapshot, ReplicaView
from fleet.placement import Reject, place
from helexa_site.bootstrap.arguments import default_neuron_name
from helexa_site.bootstrap.console import BootstrapError, print_step
from helexa_site.data_directory import INSTANCE_HEADER, Share, instance_id
from helexa_site.migration_guard import ensure_schema_is_known, missing_migrations
from inference.protocol.heartbeat import ReplicaStatus
from inference.settings.gateway import SERVE_KEY

POLL_INTERVAL_S = 0.1
HTTP_TIMEOUT_S = 120.0
COMPLAIN_EVERY_S = 30.0
HOSTS_JOIN_S = 20.0
"""Hosts join again a few seconds after this machine's Redis has started."""
WAITS_FOR_A_HOST = ("model_recovering", "no_neuron", "cuda_unavailable")
NOT_YET = (OSError, ValueError, KeyError, redis.RedisError, SnapshotUnavailableError)
SELF_TEST_HEADER = "Helexa-Self-Test"
"""Marks ``serve``'s own request, which has its own key: it is neither billed nor counted."""
DEFAULT_MODEL = "smollm2-135m-instruct"
QUESTION = {
    "model": DEFAULT_MODEL,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
}
BYTES_PER_MB = 1_000_000

EnsureWanted = Callable[[], None]
"""Raises when the start is being stopped."""


def prepare_database(*, with_model: bool) -> str | None:
    """Returns the password of a new first admin. Raises ``BootstrapError``."""
    try:
        django.setup()
    except ImproperlyConfigured as error:
        raise BootstrapError(f"the settings cannot be used: {_first_line(error)}") from error
    from django.contrib.auth.models import User

    from fleet import services
    from metering.audit import COMMAND

    with _database():
        ensure_schema_is_known()
        if missing_migrations():
            print_step("database", "migrating")
            call_command("migrate", verbosity=0, interactive=False)
        password = None
        if not User.objects.filter(is_superuser=True).exists():
            password = secrets.token_urlsafe(12)
            User.objects.create_superuser(username="admin", email="", password=password)
        if with_model:
            services.default_model_offer(actor=COMMAND)
    print_step("database", f"ready ({connection.vendor})")
    return password


def prepare_fleet(*, with_neuron: bool, share: Share | None) -> None:
    """Raises ``BootstrapError``."""
    from fleet import services
    from metering.audit import COMMAND

    with _database():
        if with_neuron:
            services.neuron_expect(actor=COMMAND, neuron_name=default_neuron_name())
        services.share_record(
            actor=COMMAND,
            address=share.address if share else "",
            is_tls=share.is_tls if share else False,
            certificate=share.certificate() if share else "",
        )
        services.redis_users_apply()


def has_keys() -> bool:
    """True also where the database does not answer: only a hint depends on it."""
    from metering.models import ApiKey

    with contextlib.suppress(BootstrapError), _database():
        return ApiKey.objects.exists()
    return True


@contextlib.contextmanager
def _database() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        raise BootstrapError(f"the database cannot be used: {_first_line(error)}") from error
    finally:
        connections.close_all()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def wait_for_gateway(
    url: str, data_dir: Path, ensure_wanted: EnsureWanted, *, needs_neuron: bool = True
) -> None:
    """Ignores the answer of another instance on its port."""
    ignored = {"model_away"} if needs_neuron else {"model_away", "neuron_away"}

    def is_up() -> bool:
        try:
            answer = _open(f"{url}/health")
        except urllib.error.HTTPError as error:
            answer = error  # a 503 has the failures in its body
        with answer:
            if answer.headers.get(INSTANCE_HEADER) != instance_id(data_dir):
                raise ValueError("another helexa, with another data directory, answers there")
            health = json.load(answer)
        is_missing = needs_neuron and not health["neurons"]
        return not is_missing and all(reason["code"] in ignored for reason in health["reasons"])

    complaint = "not answering yet; its log is in the data directory's logs"
    _poll(is_up, ensure_wanted, "gateway", complaint)


def wait_for_default_model(url: str, ensure_wanted: EnsureWanted) -> bool:
    """Returns whether the catalogue offers it."""
    from fleet import selectors

    with _database():
        entry = selectors.catalogue_find(DEFAULT_MODEL)
    if entry is None:
        reason = "is not offered: it was disabled or deleted in the catalogue"
        print_step("model", f"{DEFAULT_MODEL} {reason}")
    elif entry.is_kept_loaded:
        wait_for_answer(url, entry, ensure_wanted)
    else:
        print_step("model", f"{DEFAULT_MODEL} is not pinned: it is loaded on request")
    return entry is not None


def wait_for_answer(url: str, entry: CatalogueEntry, ensure_wanted: EnsureWanted) -> None:
    """Returns once the model answers, or waits for a host (``absence_of``). A failed load is
    printed, and the wait continues: the operator can repair and retry it."""
    shown, absence = "", ""
    absent_since_s: float | None = None

    def is_settled() -> bool:
        nonlocal shown, absence, absent_since_s
        snapshot = live.read_snapshot_sync(live.redis_client())
        replicas = snapshot.replicas_of(entry.name)
        for line in filter(None, map(replica_line, replicas)):
            if line != shown:
                shown = line
                print_step("model", f"{entry.name}: {line}")
        if absence := absence_of(entry, snapshot):
            absent_since_s = absent_since_s or time.monotonic()
            return time.monotonic() - absent_since_s >= HOSTS_JOIN_S
        absent_since_s = None
        return any(one.status is ReplicaStatus.READY for one in replicas) and _answers(url)

    _poll(is_settled, ensure_wanted, "model", "no answer yet")
    print_step("model", absence or f"{entry.name} answers")


def absence_of(entry: CatalogueEntry, snapshot: FleetSnapshot) -> str:
    """Empty unless the model waits for a host that is offline, outdated or without its cards."""
    decision = place(entry, snapshot)
    if isinstance(decision, Reject) and decision.code in WAITS_FOR_A_HOST:
        return decision.message
    return ""


def replica_line(replica: ReplicaView) -> str:
    if replica.status is ReplicaStatus.FAILED and replica.failure is not None:
        return (
            f"cannot be loaded: {replica.failure.message} "
            "(everything else stays up; it is tried again, and the admin has a Load action)"
        )
    if replica.status is ReplicaStatus.READY and replica.report is not None:
        return f"loaded in {replica.report.load_seconds:.1f} s; {replica.report.quantization}"
    if (progress := replica.progress) is None:
        return ""
    if not progress.total:
        return progress.stage.value
    size = f" of {progress.total / BYTES_PER_MB:.0f} MB" if progress.unit == "bytes" else ""
    return f"{progress.stage.value} {10 * (10 * progress.done // progress.total)} %{size}"


def curl_line(url: str, *, has_key: bool) -> str:
    key = '-H "Authorization: Bearer $HELEXA_API_KEY" ' if has_key else ""
    return (
        f"curl {url}/v1/chat/completions {key}"
        f"-H 'Content-Type: application/json' -d '{json.dumps(QUESTION)}'"
    )


def _answers(url: str) -> bool:
    headers = {"Content-Type": "application/json", SELF_TEST_HEADER: "1"}
    with _open(f"{url}/v1/chat/completions", QUESTION | {"max_tokens": 16}, headers) as response:
        return bool(json.load(response)["choices"][0]["message"]["content"])


def _open(url: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    headers = dict(headers or {})
    if key := SERVE_KEY.read(os.environ):
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(urllib.request.Request(url, data, headers), timeout=HTTP_TIMEOUT_S)


def _poll(
    is_done: Callable[[], bool], ensure_wanted: EnsureWanted, step: str, complaint: str
) -> None:
    complain_at_s = time.monotonic() + COMPLAIN_EVERY_S
    done = False
    while not done:
        reason = ""
        try:
            done = is_done()
        except NOT_YET as error:
            reason = str(error)
        ensure_wanted()
        if reason and time.monotonic() > complain_at_s:
            print_step(step, f"{complaint} ({reason})")
            complain_at_s = time.monotonic() + COMPLAIN_EVERY_S
        if not done:
            time.sleep(POLL_INTERVAL_S)
