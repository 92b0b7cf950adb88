"""``manage.py neuron --join LINE`` over TCP: it loads and answers under a Redis user of its own."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from benchmarks.ports import free_port
from fleet.redis_users import secret_hash, users_apply
from helexa_site.bootstrap.guardian import Guardian
from helexa_site.bootstrap.redis_server import configure_private_redis, wait_for_redis
from helexa_site.bootstrap.sharing import Share
from inference.neuron.process.celery_app import create_app
from inference.protocol.events import Cancelled, Finished
from inference.protocol.joining import Joining, encode_joining
from inference.protocol.keys import TASK_DRAIN_INBOX, TASK_LOAD_MODEL
from tests.inference.neuron.conftest import TestGateway, wait_until
from tests.servers.private_redis import MortalRedis

pytestmark = pytest.mark.slow

REPOSITORY_DIR = Path(__file__).resolve().parents[4]
SECRET = "a-secret-of-this-test-alone"


def test_a_host_that_joined(engine_command: list[str], fake_spec: Any, tmp_path: Path) -> None:
    port = free_port()
    directives = Share(host="127.0.0.1", port=port).directives()
    server = configure_private_redis(tmp_path / "redis", listening=directives)
    environment = {name: value for name, value in os.environ.items() if name != "REDIS_URL"} | {
        "HELEXA_DATA_DIR": str(tmp_path / "data"),
        "HELEXA_ENGINE_COMMAND": shlex.join(engine_command),
    }
    line = encode_joining(
        Joining(neuron="n1", redis_url=f"redis://neuron-n1:{SECRET}@127.0.0.1:{port}/0")
    )

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(REPOSITORY_DIR / "manage.py"), "neuron", *arguments]
        return subprocess.Popen(command, cwd=REPOSITORY_DIR, env=environment)

    with Guardian() as guardian, redis.Redis.from_url(server.url) as client:
        running = MortalRedis(server, guardian, tmp_path / "redis.log")
        neuron = None
        try:
            wait_for_redis(server.url)
            users_apply(client, {"n1": secret_hash(SECRET)})
            gateway = TestGateway(client, "n1")
            app = create_app(name="n1", redis_url=server.url)
            neuron = start("--join", line)
            wait_until(gateway.has_heartbeat, timeout_s=120)
            app.send_task(TASK_LOAD_MODEL, args=[msgspec.to_builtins(fake_spec())], expires=60)
            gateway.wait_status("ready")
            request_id = gateway.submit(max_tokens=5)
            app.send_task(TASK_DRAIN_INBOX, expires=10)
            assert isinstance(gateway.wait_end(request_id)[-1], Finished)
            request_id = gateway.submit()
            gateway.wait_events(request_id, lambda events: len(events) > 2)
            gateway.cancel(request_id)
            assert isinstance(gateway.wait_end(request_id)[-1], Cancelled)
            denied = {(entry["reason"], entry["object"]) for entry in client.acl_log()}
            assert denied <= {("command", "zadd"), ("key", "helexa:neurons")}
            commands = Path(f"/proc/{neuron.pid}/cmdline").read_bytes()
            assert SECRET.encode() not in commands
            assert line.encode() not in commands

            neuron.send_signal(signal.SIGTERM)
            assert neuron.wait(60) == 0
            neuron = start()  # it knows where it belongs
            wait_until(gateway.has_heartbeat, timeout_s=120)
            gateway.wait_status("ready")
            app.close()
        finally:
            if neuron is not None:
                neuron.send_signal(signal.SIGTERM)
                neuron.wait(60)
            running.kill()
