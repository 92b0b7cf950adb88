"""What ``serve`` waits for before it reports that it is ready."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import redis

from fleet import selectors, services
from fleet.live import reading as live
from fleet.live.desired_state import (
    DesiredState,
    DesiredStates,
    KnownDevice,
    KnownHost,
    encode_desired_states,
)
from helexa_site.bootstrap import readiness
from helexa_site.bootstrap.database import prepare_database
from helexa_site.bootstrap.readiness import EnsureWanted
from helexa_site.bootstrap.serve import wait_for_default_model
from helexa_site.bootstrap.supervisor import StoppingError
from helexa_site.instance import instance_id
from inference.protocol.heartbeat import PROTOCOL, encode_heartbeat
from inference.protocol.keys import NEURON_DESIRED_STATES, heartbeat_key
from metering.actor import COMMAND
from tests.fleet.conftest import heartbeat, replica
from tests.fleet.ordered import ordered
from tests.servers.answering_server import answering

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh_catalogue_cache() -> Iterator[None]:
    selectors.catalogue_cache_clear()
    yield
    selectors.catalogue_cache_clear()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses at which a start waited for an answer."""
    asked: list[str] = []
    monkeypatch.setattr(readiness, "wait_for_answer", lambda url, *_: asked.append(url))
    return asked


def start() -> None:
    wait_for_default_model("http://host", lambda: None)


def test_the_default_model_is_waited_for_while_it_is_pinned(waits: list[str]) -> None:
    services.default_model_ensure(actor=COMMAND)
    start()
    assert waits == ["http://host"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [({"pinned": False}, "is loaded on request"), ({"enabled": False}, "is not offered")],
)
def test_a_model_that_nobody_loads_is_not_waited_for(
    change: dict[str, bool], expected: str, waits: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    model = services.default_model_ensure(actor=COMMAND)
    model.assign(change)
    services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=list(change))
    start()
    assert waits == []
    assert expected in capsys.readouterr().out


def test_a_default_model_that_was_deleted_is_neither_put_back_nor_waited_for(
    waits: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_database(with_model=True)
    model = selectors.model_known(readiness.DEFAULT_MODEL)
    services.catalogue_model_delete(actor=COMMAND, model=model)
    prepare_database(with_model=True)
    start()
    assert selectors.catalogue_list() == ()
    assert waits == []
    assert "is not offered" in capsys.readouterr().out


def test_a_gateway_of_another_instance_is_not_waited_for(tmp_path: Path) -> None:
    """It is not waited for even where it accepts our key and reports that it is healthy."""
    asked = iter(range(3))

    def ensure_wanted() -> None:
        if next(asked, None) is None:
            raise StoppingError

    health = {"/health": b'{"status": "ok", "neurons": [{}], "reasons": []}'}
    with answering(health, "another") as port, pytest.raises(StoppingError):
        readiness.wait_for_gateway(f"http://127.0.0.1:{port}", tmp_path, ensure_wanted)
    ours = instance_id(tmp_path)
    with answering(health, ours) as port:
        readiness.wait_for_gateway(f"http://127.0.0.1:{port}", tmp_path, lambda: None)


ASKED = {"/v1/chat/completions": b'{"choices": [{"message": {"content": "Paris"}}]}'}


def test_the_answer_of_an_invited_host_is_waited_for(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An invited host may not write the list of neurons: the desired states name it."""
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)
    ready = replica(model=readiness.DEFAULT_MODEL)
    services.neuron_expect(actor=COMMAND, neuron_name="invited")
    beat = ordered(heartbeat("invited", replicas=[ready]))
    redis_db.set(heartbeat_key("invited"), encode_heartbeat(beat))
    entry = services.default_model_ensure(actor=COMMAND).entry()
    with answering(ASKED, "ours") as port:
        readiness.wait_for_answer(f"http://127.0.0.1:{port}", entry, never_again(100))
    assert f"{entry.name} answers" in capsys.readouterr().out


def test_a_host_that_stays_away_does_not_hold_up_the_start(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)
    monkeypatch.setattr(readiness, "HOSTS_JOIN_S", 0.2)
    host = KnownHost(devices=(KnownDevice(kind="cpu", total_memory_bytes=1 << 40),), away_s=70.0)
    desired_states = DesiredStates(by_neuron={"invited": DesiredState(host=host)})
    redis_db.hset(NEURON_DESIRED_STATES, mapping=encode_desired_states(desired_states))
    entry = services.default_model_ensure(actor=COMMAND).entry()
    readiness.wait_for_answer("http://127.0.0.1:1", entry, never_again(100))
    assert "can only be loaded on invited, which has been away" in capsys.readouterr().out


def test_a_host_that_is_not_upgraded_does_not_hold_up_the_start(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its replica is ready, and gateways send it nothing."""
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)
    monkeypatch.setattr(readiness, "HOSTS_JOIN_S", 0.2)
    services.neuron_expect(actor=COMMAND, neuron_name="invited")
    beat = ordered(heartbeat("invited", replicas=[replica(model=readiness.DEFAULT_MODEL)]))
    old = msgspec.structs.replace(beat, protocol=PROTOCOL - 1)
    redis_db.set(heartbeat_key("invited"), encode_heartbeat(old))
    entry = services.default_model_ensure(actor=COMMAND).entry()
    readiness.wait_for_answer("http://127.0.0.1:1", entry, never_again(100))
    assert "answers" not in (shown := capsys.readouterr().out)
    assert "invited" in shown, shown


def test_a_host_whose_cards_cannot_be_used_does_not_hold_up_the_start(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)
    monkeypatch.setattr(readiness, "HOSTS_JOIN_S", 0.2)
    services.neuron_expect(actor=COMMAND, neuron_name="broken")
    beat = ordered(heartbeat("broken"))
    host = msgspec.structs.replace(beat.host, cuda_unavailable="reboot")
    broken = msgspec.structs.replace(beat, host=host)
    redis_db.set(heartbeat_key("broken"), encode_heartbeat(broken))
    entry = services.default_model_ensure(actor=COMMAND).entry()
    readiness.wait_for_answer("http://127.0.0.1:1", entry, never_again(100))
    assert "The cards of broken cannot be used: reboot" in capsys.readouterr().out


def never_again(num_times: int) -> EnsureWanted:
    """Ends a wait that lasts longer than so many polls."""
    left = iter(range(num_times))

    def ensure_wanted() -> None:
        if next(left, None) is None:
            raise StoppingError

    return ensure_wanted
