"""What ``serve`` waits for before it reports that it is ready, and its message without any key."""

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
from helexa_site.bootstrap.readiness import EnsureWanted, has_keys, prepare_database
from helexa_site.bootstrap.serve import first_key_lines
from helexa_site.bootstrap.supervisor import StoppingError
from helexa_site.data_directory import instance_id
from helexa_site.program import REPOSITORY_DIR
from inference.protocol.heartbeat import PROTOCOL, encode_heartbeat
from inference.protocol.keys import NEURON_DESIRED_STATES, heartbeat_key
from metering.audit import COMMAND
from metering.services import account_create, key_create
from tests.fleet.conftest import heartbeat, replica
from tests.fleet.ordered import ordered
from tests.servers.answering_server import answering

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _fresh_catalogue_cache() -> Iterator[None]:
    selectors.catalogue_cache_clear()
    yield
    selectors.catalogue_cache_clear()


def test_the_default_model_is_waited_for_while_it_is_pinned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that was deleted is not put back."""
    asked: list[str] = []
    monkeypatch.setattr(readiness, "wait_for_answer", lambda url, *_: asked.append(url))

    def started() -> tuple[bool, bool]:
        """Whether a start offers it and waits for its answer."""
        asked.clear()
        is_offered = readiness.wait_for_default_model("http://host", lambda: None)
        return is_offered, asked == ["http://host"]

    assert not has_keys()
    assert prepare_database(with_model=True) and prepare_database(with_model=True) is None
    assert started() == (True, True)
    model = selectors.model_known(readiness.DEFAULT_MODEL)
    for change, is_offered, expected in (
        ({"pinned": False}, True, "is loaded on request"),
        ({"enabled": False}, False, "is not offered"),
    ):
        model.assign(change)
        services.catalogue_model_update(actor=COMMAND, model=model, changed_fields=list(change))
        assert started() == (is_offered, False) and expected in capsys.readouterr().out
    services.catalogue_model_delete(actor=COMMAND, model=model)
    prepare_database(with_model=True)
    assert selectors.catalogue_list() == ()
    assert started() == (False, False)
    key_create(actor=COMMAND, account=account_create(actor=COMMAND, name="some-team"))
    assert has_keys()


def test_a_gateway_of_another_instance_is_not_waited_for(tmp_path: Path) -> None:
    """It is not waited for even where it accepts our key and reports that it is healthy."""
    health = {"/health": b'{"status": "ok", "neurons": [{}], "reasons": []}'}
    with answering(health, "another") as port, pytest.raises(StoppingError):
        readiness.wait_for_gateway(f"http://127.0.0.1:{port}", tmp_path, never_again(3))
    ours = instance_id(tmp_path)
    with answering(health, ours) as port:
        readiness.wait_for_gateway(f"http://127.0.0.1:{port}", tmp_path, lambda: None)


ASKED = {"/v1/chat/completions": b'{"choices": [{"message": {"content": "Paris"}}]}'}


def never_again(num_times: int) -> EnsureWanted:
    """Ends a wait that lasts longer than so many polls."""
    left = iter(range(num_times))

    def ensure_wanted() -> None:
        if next(left, None) is None:
            raise StoppingError

    return ensure_wanted


def test_an_invited_host_is_waited_for_where_it_can_answer(
    redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may not write the list of neurons: the desired states name it."""
    monkeypatch.setattr(live, "redis_client", lambda: redis_db)
    monkeypatch.setattr(readiness, "HOSTS_JOIN_S", 0.2)
    entry = services.default_model_ensure(actor=COMMAND).entry()

    def waited(port: int = 1) -> str:
        readiness.wait_for_answer(f"http://127.0.0.1:{port}", entry, never_again(100))
        return capsys.readouterr().out

    away = KnownHost(devices=(KnownDevice(kind="cpu", total_memory_bytes=1 << 40),), away_s=70.0)
    states = DesiredStates(by_neuron={"invited": DesiredState(host=away)})
    redis_db.hset(NEURON_DESIRED_STATES, mapping=encode_desired_states(states))
    assert "can only be loaded on invited, which has been away" in waited()
    services.neuron_expect(actor=COMMAND, neuron_name="invited")
    ready = [replica(model=readiness.DEFAULT_MODEL)]
    for replicas, changes, host, shown in (
        (ready, {}, {}, f"{readiness.DEFAULT_MODEL} answers"),
        # Its replica is ready, and gateways send it nothing.
        (ready, {"protocol": PROTOCOL - 1}, {}, "invited"),
        ([], {}, {"cuda_unavailable": "reboot"}, "The cards of invited cannot be used: reboot"),
    ):
        beat = ordered(heartbeat("invited", replicas=replicas))
        host_facts = msgspec.structs.replace(beat.host, **host)
        beat = msgspec.structs.replace(beat, host=host_facts, **changes)
        redis_db.set(heartbeat_key("invited"), encode_heartbeat(beat))
        with answering(ASKED, "ours") as port:
            printed = waited(port)
        assert shown in printed and ("answers" in printed) == ("answers" in shown)


def test_the_message_without_any_key() -> None:
    usual = {"data_dir": REPOSITORY_DIR / "var", "program": "python3 manage.py"}
    for changes, *words in (
        ({}, "clients may have one. To make one:", "python3 manage.py accounts create team && "),
        ({"is_open": False}, "clients need one", "python3 manage.py keys create team"),
        ({"has_database_url": True}, "where DATABASE_URL is set as it is here:", "accounts"),
        ({"data_dir": Path("/d d")}, "may", "HELEXA_DATA_DIR='/d d' python3 manage"),
    ):
        facts = usual | {"is_open": True, "has_database_url": False} | changes
        lines = first_key_lines(**facts)  # type: ignore[arg-type]
        assert all(word in line for word, line in zip(words, lines, strict=True)), lines
        assert ("HELEXA_DATA_DIR" in lines[1]) == ("data_dir" in changes)
