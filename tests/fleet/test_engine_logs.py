"""An engine's log over REST, by command and on its page, from a neuron that answers as the real one
does; messages to neurons, as the first ones of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import redis
from django.core.management import CommandError
from django.test import Client
from django.urls import reverse

from fleet import neuron_client, services
from fleet.models import Replica
from helexa_site.program import REPOSITORY_DIR
from inference.neuron.replicas.engine_process import EngineLogs
from metering.audit import COMMAND
from tests.fleet.api.api_support import key_api
from tests.fleet.conftest import offer
from tests.metering.callers import text_of
from tests.metering.commands.command_output import output

pytestmark = pytest.mark.django_db(transaction=True)


class Neuron:
    """Stands where Celery's ``send_task`` is."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.logs = EngineLogs(client, neuron="beast")
        self.is_silent = False

    def send_task(self, name: str, args: list[Any], **options: Any) -> None:
        assert (name, options["queue"]) == ("neuron.tell_log", "neuron.beast")
        if not self.is_silent:
            self.logs.send(*args)


@pytest.fixture
def neuron(publish, redis_db: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Neuron:
    services.heartbeat_record(heartbeat=publish())
    model = offer()
    services.alias_create(actor=COMMAND, name="org/tiny", model=model)
    neuron = Neuron(redis_db)
    monkeypatch.setattr(neuron_client, "app", neuron)
    for number in range(200):
        neuron.logs.writer("tiny")(f"line {number}\n".encode())
    return neuron


def test_rest(neuron: Neuron, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.ALLOWED_HOSTS = ["testserver"]
    reader = key_api("fleet:read")
    answer = reader.get("neurons/beast/models/org/tiny/logs?lines=2")
    assert answer == {"neuron": "beast", "model": "tiny", "lines": ["line 198", "line 199"]}
    assert len(reader.get("neurons/beast/models/org/tiny/logs")["lines"]) == 100
    for lines in ("0", "5001", "x", "-1", "9" * 30, "²"):
        refused = reader.get(f"neurons/beast/models/org/tiny/logs?lines={lines}", 400)
        assert refused["param"] == "lines"
    assert reader.get("neurons/beast/models/nobody/logs", 404)["code"] == "replica_not_found"
    assert reader.get("neurons/nobody/models/tiny/logs", 404)["code"] == "neuron_not_found"
    key_api("inference").get("neurons/beast/models/org/tiny/logs", 403)
    monkeypatch.setattr(neuron_client, "ANSWER_TIMEOUT_S", 0.1)
    neuron.is_silent = True
    assert reader.get("neurons/beast/models/org/tiny/logs", 503)["code"] == "log_unavailable"


def test_the_command_and_the_page(neuron: Neuron, beat, build, admin_client: Client) -> None:
    where = "/admin/dashboard/log/beast/{}".format

    def linked(model: str) -> str:
        beat(replicas=[build.replica(model=model)])
        (replica,) = Replica.objects.all()
        return text_of(admin_client, reverse("admin:fleet_replica_change", args=[replica.pk]))

    assert output("logs", "beast", "org/tiny", "--lines", "2") == "line 198\nline 199\n"
    with pytest.raises(CommandError, match="No engine for nobody has run on beast"):
        output("logs", "beast", "nobody")
    neuron.logs.writer("tiny")(b"CUDA <out> of memory\n")
    assert where("tiny") in linked("tiny")
    assert "CUDA &lt;out&gt; of memory" in text_of(admin_client, where("tiny"))
    beat()  # a reload: the replica's row goes, and another comes
    assert not Replica.objects.exists()
    assert "CUDA &lt;out&gt; of memory" in text_of(admin_client, where("tiny"))
    assert where("org/tiny") in linked("org/tiny")
    neuron.logs = EngineLogs(neuron.client, neuron="beast")
    assert "No engine for tiny has run" in text_of(admin_client, where("tiny"))
    nobody = text_of(admin_client, "/admin/dashboard/log/nobody/tiny")
    assert "no neuron" in nobody.lower()
    assert Client().get(where("tiny")).status_code == 302


EIGHT_AT_ONCE = """
import sys, threading
import django
django.setup()
from fleet import neuron_client

class App:
    def send_task(self, *_, **__):
        neuron_client._sending_app()

def send():
    together.wait()
    neuron_client.send("a task", "beast")
    sent.append(1)

neuron_client.app, sent, together = App(), [], threading.Barrier(8)
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=send) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(len(sent) != 8)
"""


def test_the_first_messages_of_several_threads_are_all_sent() -> None:
    """Celery is imported for the first one."""
    subprocess.run(
        [sys.executable, "-c", EIGHT_AT_ONCE], cwd=REPOSITORY_DIR, env=os.environ, check=True
    )
