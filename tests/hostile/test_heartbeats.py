"""A report that is malformed or hostile is refused by name, logged once, and stops nothing; and
every field wrong of what a neuron lists beside it: the requests that it holds, its downloads, the
lines of its engines' logs. Malformed entries are left out, and the others stay."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest
import redis
import redis.asyncio

from fleet import neuron_client, services
from fleet.errors import EngineLogUnavailableError, ReplicaNotFoundError
from fleet.lifecycles import NeuronStatus
from fleet.live import reading as live
from fleet.live import reports
from fleet.live.reading import read_cache_reports
from fleet.live.reports import MAX_REPLICAS, LoadOrders, Report, log_refusal, read_report
from fleet.live.snapshot import build_snapshot
from fleet.models import Neuron
from inference.gateway.gateway import Gateway
from inference.protocol import keys
from inference.protocol.delivery import HeldRequests, encode_held_requests
from inference.protocol.engine import EngineStats
from inference.protocol.heartbeat import HostInfo, NeuronHeartbeat, ReplicaStatus, encode_heartbeat
from inference.protocol.images import VisionInput
from inference.protocol.load_report import LoadFailure
from inference.protocol.neuron_tasks import (
    CacheReport,
    EngineLogAnswer,
    encode_cache_report,
    encode_engine_log,
)
from inference.version import VERSION
from metering.audit import COMMAND
from tests.cases import each_case
from tests.fleet.conftest import heartbeat
from tests.hostile.conftest import EVIL
from tests.hostile.wrong import sample, wrong
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.fake_neuron import FakeNeuron


def hostile(build: Any) -> dict[str, NeuronHeartbeat]:
    """Each decodes; none can be recorded."""
    host, beat, replica = build.heartbeat().host, build.heartbeat, build.replica
    vision = VisionInput(pad_token_id=1, patch_px=0, merge=2, min_pixels=1, max_pixels=1)
    replicas = {
        "context": replica(report=build.report(context_tokens=2**62)),
        "negative context": replica(report=build.report(context_tokens=-5)),
        "output": replica(max_output_tokens=2**62),
        "patches": replica(report=build.report(vision=vision)),
        "NUL": replica(failure=LoadFailure(code="broken", message="a\0b")),
        "in_flight": replica(stats=build.stats(in_flight=2**40)),
        "since": replica(since_unix_s=-5.0),
    }
    many = [replica(model=f"model-{i}") for i in range(MAX_REPLICAS + 1)]
    return {
        **{what: beat(replicas=[one]) for what, one in replicas.items()},
        "letters": beat(epoch="e" * 65),
        "hostname": beat(host=changed(host, hostname="h" * 256)),
        "bytes": beat(host=changed(host, total_memory_bytes=2**63)),
        "negative": beat(devices=[build.device(free_memory_bytes=-1)]),
        "cores": beat(host=changed(host, num_cores=2**31)),
        "time": beat(started_unix_s=1e300),
        "replicas": beat(replicas=many),
        "twice": beat(replicas=[replica(), replica()]),
        "devices": beat(devices=[build.device(index=i) for i in range(65)]),
        "problems": beat(host=changed(host, problems=["p" * 5000])),
    }


def changed(host: HostInfo, **changes: Any) -> HostInfo:
    return msgspec.structs.replace(host, **changes)


@pytest.mark.django_db
def test_refused_by_name_and_reported_once(build, caplog) -> None:
    """Were it not refused before, the database would: then too it stops nothing."""
    for number, (kind, beat) in enumerate(hostile(build).items()):
        payload = encode_heartbeat(beat)
        reports._log.forget("beast")  # what other tests reported of it
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                report = read_report("beast", payload)
                payload += b" "  # another report of the same kind
        assert report.heartbeat is None, kind
        assert "its report is refused" in report.problem, kind
        (record,) = caplog.records
        assert record.getMessage().startswith("neuron beast: its report is refused"), kind
        services.report_record(report=Report("beast", beat))
        other = f"after-{number}"
        report = read_report(other, encode_heartbeat(build.heartbeat(other)))
        services.report_record(report=report)
        assert Neuron.objects.get(name=other).status == NeuronStatus.ONLINE, kind
    caplog.clear()
    for number in range(100):  # refusals that differ each time fill no log
        log_refusal("liar", f"reason {number}")
    assert len(caplog.records) == 5


@each_case(
    "payload", [b"", b"{}", b"\xff\xfe", b'{"name": "beast"}', b"[" * 100_000, b" " * 2**20 + b"{}"]
)
def test_what_is_no_report_and_one_that_passes(build, payload: bytes) -> None:
    assert read_report("beast", payload).heartbeat is None
    stats: EngineStats = build.stats(in_flight=3, last_forward_unix_s=1_700_000_000.0)
    beat = build.heartbeat(replicas=[build.replica(report=build.report(), stats=stats)])
    report = read_report("beast", encode_heartbeat(beat))
    assert report == Report("beast", beat)
    assert read_report("beast", encode_heartbeat(beat)) is report


@pytest.mark.django_db
def test_the_problem_is_on_the_neurons_row_until_it_is_over(build) -> None:
    services.report_record(report=Report("beast", build.heartbeat(version=VERSION)))
    services.report_record(report=Report("beast", None, "its report is refused: a NUL is in it"))
    assert Neuron.objects.get().problems == ["its report is refused: a NUL is in it"]
    services.report_record(report=Report("beast", build.heartbeat(version=VERSION)))
    assert Neuron.objects.get().problems == []
    services.report_record(report=Report("beast", build.heartbeat(version="9.9.9")))
    (problem,) = Neuron.objects.get().problems
    assert "9.9.9" in problem and VERSION in problem
    services.report_record(report=Report("newer", None, "its report is refused: who knows"))
    assert Neuron.objects.get(name="newer").status == NeuronStatus.AWAY, "it was never understood"
    services.report_record(report=Report("../no/name", None, "its report is refused"))
    assert Neuron.objects.count() == 2


ORDERS = LoadOrders("of a test")


def test_a_replica_that_nobody_ordered_does_not_exist(build, caplog) -> None:
    elsewhere = ORDERS.order(neuron="other", model="stolen")
    another = ORDERS.order(neuron="beast", model="tiny")
    beat = build.heartbeat(
        replicas=[
            build.replica(model="tiny", order=another),
            build.replica(model="claimed"),
            build.replica(model="stolen", order=elsewhere),
            build.replica(model="swapped", order=another),
            build.replica(model="odd", order="é" * 32),
            build.replica(model="held up", status=ReplicaStatus.LOADING),
        ]
    )
    report = read_report("beast", encode_heartbeat(beat), ORDERS)
    assert report.heartbeat is not None
    assert [state.model for state in report.heartbeat.replicas] == ["tiny"]
    assert report.heartbeat.host.problems == [
        "it reports claimed, stolen, swapped and more, which nobody ordered there: "
        "no requests go to it"
    ]
    assert "nobody ordered" in caplog.text
    snapshot = build_snapshot([report.heartbeat])
    assert [view.model for view in snapshot.replicas()] == ["tiny"]


def test_texts_that_move_the_cursor_or_forge_lines_are_escaped(build) -> None:
    """A neuron's texts about itself reach terminals."""
    raw = "\x1b[2J\x1b[31mred\nneuron forged online\u202e\x9b1m\u2028"
    host = changed(build.heartbeat().host, hostname=raw, problems=[raw])
    failed = build.replica(model=f"m{raw}", failure=LoadFailure(code="broken", message=raw))
    report = read_report("beast", encode_heartbeat(build.heartbeat(host=host, replicas=[failed])))
    assert report.heartbeat is not None
    (state,) = report.heartbeat.replicas
    assert state.failure is not None
    shown = "\\x1b[2J\\x1b[31mred neuron forged online\\u202e\\x9b1m\\u2028"
    assert report.heartbeat.host.hostname == shown
    assert report.heartbeat.host.problems == [shown]
    assert state.failure.message == shown
    assert state.model == f"m{shown}"


@pytest.mark.slow
@pytest.mark.django_db
def test_every_field_wrong_is_refused_or_can_be_recorded(build) -> None:
    """What passes goes into the snapshot, the database and the dashboard, and must be shown
    there."""
    honest = Report("beast", build.heartbeat("beast"))
    num_passed, beats = 0, cases(NeuronHeartbeat, name=EVIL)
    for beat in beats:
        report = read_report(EVIL, encode_heartbeat(beat))
        num_passed += report.heartbeat is not None
        services.report_record(report=report)
        if report.heartbeat is not None:
            assert honest.heartbeat is not None
            snapshot = build_snapshot([honest.heartbeat, report.heartbeat])
            assert [view.name for view in snapshot.neurons] == ["beast", EVIL]
            msgspec.json.encode(snapshot.neurons)
    services.report_record(report=honest)
    assert Neuron.objects.get(name="beast").status == NeuronStatus.ONLINE
    assert 0 < num_passed < len(beats)


CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


def cases(kind: type[msgspec.Struct], **named: Any) -> list[Any]:
    sound = msgspec.structs.replace(sample(kind), **named)
    return [sound, *wrong(sound, kind)]


async def test_any_list_of_held_requests(
    client: AsgiClient, gateway: Gateway, neuron: FakeNeuron, redis_client: redis.asyncio.Redis
) -> None:
    """No field of another neuron's list, nor of its own, ends a request of another neuron."""
    assert (await client.post(CHAT, BODY)).status == 200
    open_ = client.open("POST", CHAT, {**BODY, "stream": True})
    for beat, listed in enumerate(cases(HeldRequests)):
        listed = msgspec.structs.replace(listed, beat=beat) if listed.beat == 1 else listed
        try:
            data = encode_held_requests(listed)
        except OverflowError:
            continue
        fields = {"": data, gateway.gateway_id: data}
        await redis_client.hset(keys.held_key(EVIL), mapping=fields)
        await gateway.held.look(["beast", EVIL])
    assert (await open_.finish()).status == 200
    assert (await client.post(CHAT, BODY)).status == 200


@pytest.mark.django_db(transaction=True)
def test_any_report_of_downloads(redis_db: redis.Redis) -> None:
    for name in ("beast", EVIL):
        services.heartbeat_record(heartbeat=heartbeat(name))
    honest = msgspec.structs.replace(sample(CacheReport), neuron="beast")
    redis_db.set(keys.downloads_key("beast"), encode_cache_report(honest))
    num_taken = 0
    for report in cases(CacheReport, neuron=EVIL):
        redis_db.set(keys.downloads_key(EVIL), encode_cache_report(report))
        found = read_cache_reports(redis_db, ["beast", EVIL])
        assert found["beast"] == honest
        services.downloads_record(reports=found)
        num_taken += EVIL in found
    assert num_taken > 1, "some of it is no more than odd"


class Liar:
    """Stands where Celery's ``send_task`` is: the answer is there at once."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.answer = b""

    def send_task(self, _name: str, args: list[Any], **_options: Any) -> None:
        self._client.rpush(keys.engine_log_key(EVIL, args[0]), self.answer)


@pytest.mark.django_db(transaction=True)
def test_any_engine_log(redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    services.heartbeat_record(heartbeat=heartbeat(EVIL))
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    liar = Liar(redis_db)
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)
    monkeypatch.setattr(neuron_client, "app", liar)
    num_shown = 0
    for answer in cases(EngineLogAnswer, is_known=True):
        liar.answer = encode_engine_log(answer)
        try:
            log = neuron_client.engine_log(EVIL, "tiny")
        except (EngineLogUnavailableError, ReplicaNotFoundError):
            continue
        assert all(line.isprintable() for line in log.lines)
        num_shown += 1
    assert num_shown > 1
    assert Neuron.objects.filter(name=EVIL).exists()
