"""The private Redis: who reaches it, what an invited host keeps, and what is left behind; and what
``serve`` waits for before it reports that it is ready."""

from __future__ import annotations

import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import redis

from benchmarks.ports import free_port
from fleet import selectors, services
from fleet.live import desired_state
from fleet.live import reading as live
from helexa_site.addresses import reached_at, shown_urls
from helexa_site.bootstrap import readiness, redis_server
from helexa_site.bootstrap.arguments import parse_neuron
from helexa_site.bootstrap.console import BootstrapError
from helexa_site.bootstrap.readiness import EnsureWanted, has_keys, prepare_database
from helexa_site.bootstrap.serve import listening_directives
from helexa_site.bootstrap.supervisor import StoppingError
from helexa_site.data_directory import Share, instance_id, keep_joining, kept_joining, redis_url_of
from inference.protocol.heartbeat import PROTOCOL, encode_heartbeat
from inference.protocol.joining import (
    Joining,
    JoinLineError,
    celery_broker_url,
    celery_ssl_options,
    decode_joining,
    encode_joining,
)
from inference.protocol.keys import NEURON_DESIRED_STATES, heartbeat_key
from metering.audit import COMMAND
from metering.services import account_create, key_create
from tests.cases import each_case
from tests.fleet.conftest import heartbeat, ordered, replica
from tests.live.fleets.certificates import Authority
from tests.servers.fake_upstream import answering
from tests.servers.private_redis import running_redis

JOINING = Joining(neuron="beast", redis_url="redis://neuron-beast:secret@10.0.0.5:31315/0")
LINE = encode_joining(JOINING)


def test_a_line_is_read_as_it_was_written_also_when_a_terminal_broke_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert decode_joining(LINE) == JOINING
    assert decode_joining(f"{LINE[:30]}\n  {LINE[30:]}\n") == JOINING
    assert "secret" not in repr(JOINING)
    for name in ([], ["--name", "beast"]):
        assert parse_neuron(["--join", LINE, *name]).joining == JOINING
    with pytest.raises(SystemExit):
        parse_neuron(["--join", LINE, "--name", "other"])
    for line in ("", "hello", "hx1.", "hx1.!!", LINE[:-8], LINE[4:], "hx1.e30"):
        with pytest.raises(JoinLineError):
            decode_joining(line)
        with pytest.raises(SystemExit) as ended:
            parse_neuron(["--join", line])
        assert ended.value.code == 2
    assert "secret" not in capsys.readouterr().err


def test_kept_for_later_starts_and_for_nobody_else(tmp_path: Path) -> None:
    assert kept_joining(tmp_path, None) is None
    keep_joining(JOINING, tmp_path)
    (kept,) = (tmp_path / "neurons").iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert kept_joining(tmp_path, None) == kept_joining(tmp_path, "beast") == JOINING
    assert kept_joining(tmp_path, "other") is None
    keep_joining(Joining(neuron="other", redis_url="redis://x"), tmp_path)
    with pytest.raises(BootstrapError, match="beast, other"):
        kept_joining(tmp_path, None)
    kept.write_text("{")
    with pytest.raises(BootstrapError, match="join again"):
        kept_joining(tmp_path, "beast")
    kept.chmod(0)
    (tmp_path / "file").touch()
    with pytest.raises(BootstrapError, match="cannot keep the invitation"):
        keep_joining(JOINING, tmp_path / "file")
    joining = Joining(neuron="b", redis_url="rediss://u:p@h:1/0", certificate="PEM")
    keep_joining(joining, tmp_path)
    url, pem = redis_url_of(joining, tmp_path), tmp_path / "neurons" / "b.pem"
    assert pem.read_text() == "PEM"
    connection = redis.Redis.from_url(url).connection_pool.connection_kwargs
    assert celery_broker_url(url) == "rediss://u:p@h:1/0"
    for options in (connection, celery_ssl_options(url)):  # both clients know the certificate
        assert options is not None
        assert (options["ssl_ca_certs"], options["ssl_check_hostname"]) == (str(pem), False)
    assert celery_ssl_options("redis://h") is None
    known = redis_url_of(Joining(neuron="b", redis_url="rediss://h:1/0"), tmp_path)
    assert "ssl_check_hostname=true" in known


def test_a_redis_without_tls_or_of_an_older_release_is_told_what_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "redis-server"
    binary.touch(mode=0o755)
    for output, has_tls in (
        ("# Failed to configure TLS. Check logs for more info.", True),
        ("# Missing implement of connection type tls\n# Failed finding TLS support.", False),
        (">>> 'tls-port 1'\nBad directive or wrong number of arguments", False),
    ):
        binary.write_text(f'#!/bin/sh\ncat >/dev/null\nprintf "%s" "{output}"\nexit 1\n')
        refused = pytest.raises(BootstrapError, match="built without TLS")
        with nullcontext() if has_tls else refused:
            redis_server.ensure_tls(binary)
    monkeypatch.setattr(redis_server, "find_redis_server", lambda: binary)
    for version, is_limited in (("Redis server v=7.0.15", True), ("v=6.2.1", False), ("", False)):
        binary.write_text(f"#!/bin/sh\necho '{version}'\n")
        redis_server.configure_private_redis(tmp_path)
        assert ("maxmemory-clients" in (tmp_path / "redis.conf").read_text()) is is_limited


def test_the_redis_here_listens_over_tls_where_that_is_not_refused(tmp_path: Path) -> None:
    chain, key = Authority("tests").vouch("127.0.0.1", tmp_path / "certificate")
    share = Share(host="127.0.0.1", port=free_port(), tls_cert=chain, tls_key=key)
    with pytest.raises(BootstrapError, match="cannot read the certificate"):
        replace(share, tls_cert=tmp_path / "none.pem").certificate()
    if (openssl := shutil.which("openssl")) is not None:
        own, own_key = tmp_path / "cert.pem", tmp_path / "key.pem"
        words = f"req -x509 -newkey rsa:2048 -nodes -subj /CN=h -keyout {own_key} -out {own}"
        subprocess.run([openssl, *words.split()], check=True, capture_output=True)
        signed = replace(share, tls_cert=own, tls_key=own_key)  # by itself: it travels
        assert signed.certificate() == own.read_text()
        assert f'tls-cert-file "{own}"' in signed.directives()
    try:
        listening = listening_directives(share)
    except BootstrapError as error:
        assert "built without TLS" in str(error)
        return
    server = redis_server.configure_private_redis(tmp_path / "redis", listening=listening)
    with subprocess.Popen(server.command, stdout=subprocess.DEVNULL) as process:
        try:
            redis_server.wait_for_redis(server.url, is_alive=lambda: process.poll() is None)
        finally:
            process.kill()


@pytest.mark.slow
def test_it_is_private_and_leaves_no_socket(tmp_path: Path) -> None:
    """A stale socket of an earlier run is replaced."""
    (tmp_path / "redis.sock").touch()
    with running_redis(tmp_path) as url, redis.Redis.from_url(url) as client:
        client.set("key", "value")
        assert client.get("key") == b"value"
        # A client that does not read its answers takes no more memory than that.
        assert client.config_get("maxmemory-clients") == {"maxmemory-clients": str(24 << 20)}
        with pytest.raises(BootstrapError, match="authenticate"):
            redis_server.wait_for_redis("unix://" + url.partition("@")[2])
    assert {file.name for file in tmp_path.iterdir()} == {"redis.conf", "redis.log"}
    assert stat.S_IMODE((tmp_path / "redis.conf").stat().st_mode) == 0o600


@pytest.mark.slow
@each_case("name", ["x" * redis_server.MAX_SOCKET_PATH_BYTES, "with space & ünïcode #1"])
def test_awkward_directories_get_a_socket_elsewhere(tmp_path: Path, name: str) -> None:
    run_dir = tmp_path / name
    with running_redis(run_dir) as url, redis.Redis.from_url(url) as client:
        assert client.ping()
        socket_dir = Path(url.partition("@")[2].partition("?")[0]).parent
        assert socket_dir != run_dir
    assert not socket_dir.exists()


def test_a_server_that_dies_or_is_not_there_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = iter([True])
    with pytest.raises(BootstrapError, match=r"does not answer: .*No such file"):
        redis_server.wait_for_redis(
            f"unix://{tmp_path}/none.sock", is_alive=lambda: next(lives, False)
        )
    with pytest.raises(BootstrapError, match="REDIS_URL is not the address"):
        redis_server.wait_for_redis("http://redis")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(redis_server, "WHEEL", "no-such-distribution")
    with pytest.raises(BootstrapError, match="set REDIS_URL"):
        redis_server.find_redis_server()
    valkey = tmp_path / "valkey-server"
    valkey.touch(mode=0o755)
    assert redis_server.find_redis_server() == valkey
    assert reached_at("192.0.2.7") == ["192.0.2.7"]
    assert shown_urls("127.0.0.1", 80) == ["http://127.0.0.1:80"]
    *elsewhere, here = shown_urls("0.0.0.0", 80)
    assert here == "http://127.0.0.1:80"
    assert not any("127." in url or "0.0.0.0" in url for url in elsewhere)
    for address in reached_at("0.0.0.0"):
        with socket.socket() as probe:
            probe.bind((address, 0))  # it is one of this machine's


@pytest.fixture(autouse=True)
def _fresh_catalogue_cache() -> Iterator[None]:
    selectors.catalogue_cache_clear()
    yield
    selectors.catalogue_cache_clear()


@pytest.mark.django_db(transaction=True)
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


@pytest.mark.django_db(transaction=True)
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


@pytest.mark.django_db(transaction=True)
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

    away = desired_state.KnownHost(
        devices=(desired_state.KnownDevice(kind="cpu", total_memory_bytes=1 << 40),), away_s=70.0
    )
    states = desired_state.DesiredStates(
        by_neuron={"invited": desired_state.DesiredState(host=away)}
    )
    redis_db.hset(NEURON_DESIRED_STATES, mapping=desired_state.encode_desired_states(states))
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
