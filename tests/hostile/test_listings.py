"""Every field wrong of what a neuron lists beside its heartbeat: the requests that it holds, its
downloads, the lines of its engines' logs. Malformed entries are left out, and the others stay.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import redis
import redis.asyncio

from fleet import neuron_client, services
from fleet.errors import EngineLogUnavailableError, ReplicaNotFoundError
from fleet.live import engine_logs
from fleet.live import reading as live
from fleet.live.cached_models import read_cache_reports
from fleet.models import Neuron
from inference.gateway.gateway import Gateway
from inference.protocol import keys
from inference.protocol.downloads import CacheReport, encode_cache_report
from inference.protocol.engine_logs import EngineLogAnswer, encode_engine_log
from inference.protocol.held import HeldRequests, encode_held_requests
from metering.actor import COMMAND
from tests.fleet.conftest import heartbeat
from tests.hostile.conftest import EVIL
from tests.hostile.wrong import sample, wrong
from tests.inference.gateway.asgi_client import AsgiClient
from tests.inference.gateway.fake_neuron import FakeNeuron

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


def cases(kind: type[msgspec.Struct], **named: Any) -> list[Any]:
    """The message as it should be, and with each thing in it wrong."""
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
    """What the control takes of it can be stored, and the honest one's is there beside it."""
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
def test_any_answer_of_an_engines_log(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.heartbeat_record(heartbeat=heartbeat(EVIL))
    services.catalogue_model_create(actor=COMMAND, name="tiny", source="pypi:tiny")
    liar = Liar(redis_db)
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)
    monkeypatch.setattr(neuron_client, "app", liar)
    num_shown = 0
    for answer in cases(EngineLogAnswer, is_known=True):
        liar.answer = encode_engine_log(answer)
        try:
            log = engine_logs.engine_log(EVIL, "tiny")
        except (EngineLogUnavailableError, ReplicaNotFoundError):
            continue
        assert all(line.isprintable() for line in log.lines)
        num_shown += 1
    assert num_shown > 1
    assert Neuron.objects.filter(name=EVIL).exists()
