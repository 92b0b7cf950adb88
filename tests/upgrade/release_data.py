"""The data that a release's archive holds: a fleet with accounts, requests, files and results.

All of it is written through the services, by a person named alice, so that no name of the machine
that makes the archive is in it.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

import fleet.services as fleet_services
import metering.services as metering_services
from fleet import neuron_client
from fleet.models import Download, Neuron
from fleet.services.catalogue import alias_create, catalogue_model_create
from fleet.services.upstreams import upstream_create, upstream_discovered
from fleet.upstream_http import KnownModel
from inference.batches import services as batches
from inference.batches.files import FileStore
from inference.conversations.models import ResponseRecord
from inference.conversations.services import response_save
from inference.gateway.request.outcome import Capture
from inference.protocol.heartbeat import ReplicaStatus
from inference.quotas import Quota
from metering.audit import user_actor
from metering.bench.importing import file_import
from metering.bench.models import BenchJob
from metering.bench.services import bench_job_request
from metering.ledger import store
from metering.models import Budget
from metering.money import Prices
from metering.playground.conversations import NEW, conversation_save, parse_state
from metering.principal import ALL_SCOPES
from tests.fleet.conftest import SentTasks, heartbeat, replica, report
from tests.metering.operations import reserve, settle
from tests.metering.request_records.records import ended, insert
from tests.upgrade.look import ENDED_UNIX_S, Known

ALICE = user_actor("alice")
PASSWORD = "correct horse battery staple"
UPSTREAM_KEY = "sk-an-upstreams-secret"
LIMIT = Quota(100)
PRICES = Prices(input_micro_usd=300_000, cached_input_micro_usd=30_000, output_micro_usd=1_200_000)
BENCH_TOML = """
[bench]
samples_per_version = 3

[[targets]]
name = "gpu-box"
kind = "openai"
endpoint = "http://gpu-box:8000/v1"
"""
CONVERSATION = b"""
{"turns": [{"role": "user", "text": "Where is Tbilisi?"},
           {"role": "assistant", "text": "In Georgia. \\u0000", "model": "tiny"}]}
"""


def write() -> Known:
    """Returns what a client of the release knows of it."""
    neuron_client.app = SentTasks()  # there are no neurons to send to
    _fleet()
    key = _accounts()
    _requests(key.rpartition("-")[0])
    _bench()
    *files, batch = _batch()
    return Known(
        key=key,
        username="alice",
        password=PASSWORD,
        upstream_key=UPSTREAM_KEY,
        files=files,
        batch=batch,
        response=_responses(),
        conversation=_conversation(),
    )


def _fleet() -> None:
    fleet_services.share_record(
        actor=ALICE, address="gateway.test:6380", is_tls=False, certificate=""
    )
    upstream = upstream_create(
        actor=ALICE, name="gpu-box", url="http://gpu-box:8000/v1", key=UPSTREAM_KEY
    )
    upstream_discovered(
        actor=ALICE, upstream=upstream, models=[KnownModel(id="qwen", context_tokens=32_768)]
    )
    prices = {
        f"{name}_price_micro_usd": getattr(PRICES, f"{name}_micro_usd")
        for name in ("input", "cached_input", "output")
    }
    facts = {"max_context_tokens": 2048, "temperature": 0.6, "pinned": True, **prices}
    tiny = catalogue_model_create(actor=ALICE, name="tiny", source="pypi:tiny", **facts)
    catalogue_model_create(actor=ALICE, name="pirate", source="org/pirate-lora", base="tiny")
    catalogue_model_create(actor=ALICE, name="qwen", source="upstream:gpu-box/qwen")
    alias_create(actor=ALICE, name="gpt-4o", model=tiny)
    for name in ("beast", "attic"):
        fleet_services.neuron_invite(actor=ALICE, neuron_name=name)
        fleet_services.heartbeat_record(heartbeat=heartbeat(name))
    job = fleet_services.load_job_start(actor=ALICE, model_name="tiny", neuron_name="beast")
    of_job = {"job_id": str(job.pk), "spec_digest": job.spec_digest}
    loaded = replica(status=ReplicaStatus.READY, report=report(actual_bytes=3 * 1024**3), **of_job)
    fleet_services.heartbeat_record(heartbeat=heartbeat("beast", replicas=[loaded]))
    fleet_services.load_job_start(actor=ALICE, model_name="tiny", neuron_name="attic")
    fleet_services.neuron_drain(actor=ALICE, neuron_name="attic")
    Download.objects.create(neuron=Neuron.objects.get(name="attic"), source="org/large")


def _accounts() -> str:
    """Returns a plain key."""
    facts = {"description": "Research", "weight": 3, "requests_per_minute": 600}
    account = metering_services.account_create(actor=ALICE, name="lab", **facts)
    alice = User.objects.create_superuser("alice", "alice@example.org", PASSWORD)
    own = {"actor": ALICE, "account": account}
    metering_services.membership_set(user=alice, role="owner", **own)
    for cap in (
        {"unit": "micro_usd", "cap": 5_000_000, "window": "month"},
        {"unit": "tokens", "cap": 1_000_000},
    ):
        budget = Budget(account=account, **cap)
        metering_services.budget_create(actor=ALICE, budget=budget)
    caps = [Budget(unit="micro_usd", cap=2_000_000)]
    created = metering_services.key_create(
        name="notebook", scopes=ALL_SCOPES, max_concurrent=8, caps=caps, **own
    )
    revoked = metering_services.key_create(
        name="lost", model_names=["gpt-4o"], imported="sk-team-lost", **own
    )
    metering_services.key_revoke(actor=ALICE, key=revoked.row)
    return created.key


def _requests(prefix: str) -> None:
    """Settles a request, refuses one, and leaves the reservation of a third open."""
    done, open_, refused = (uuid.UUID(int=number).hex for number in (1, 2, 3))
    whose = {"account": "lab", "key": prefix, "budgets": (1, 2, 3), "prices": PRICES}
    reserved = {"prompt_tokens": 2_000, "output_tokens": 800, "now_unix_s": ENDED_UNIX_S}
    used = {"prompt_tokens": 1_234, "completion_tokens": 567, "ended_unix_s": ENDED_UNIX_S}
    store.apply([reserve(id, **whose, **reserved) for id in (done, open_)])
    store.apply([settle(done, **whose, **used)])
    captured = Capture([(b"user-agent", b"curl")])
    captured.ask(b'{"model": "gpt-4o"}')
    captured.send(b'{"choices": []}')
    refusal = {"status": 429, "outcome": "quota_exceeded", "ended_unix_s": ENDED_UNIX_S}
    insert(
        ended(done, captured=captured, end_user="ann", **whose, **used),
        ended(refused, **whose, **refusal),
    )


def _responses() -> str:
    """Returns the id of the second of two responses of one conversation."""
    first, second = (f"resp_{uuid.UUID(int=number).hex}" for number in (1, 2))
    for id, previous_id, text in ((first, None, "Tbilisi."), (second, first, "The Kura.")):
        content = [{"type": "output_text", "text": text, "annotations": []}]
        message = {"id": f"msg_{id[5:]}_0", "type": "message", "content": content}
        response = {"id": id, "model": "gpt-4o", "status": "completed", "output": [message]}
        record = ResponseRecord(
            account="lab",
            response=response | {"created_at": int(ENDED_UNIX_S)},
            input_items=[{"id": f"msg_{id[5:]}_i0", "type": "message", "content": "And?"}],
            previous_id=previous_id,
            background=False,
        )
        response_save(record=record, quota=LIMIT)
    return second


def _batch() -> tuple[str, str, str]:
    """Returns the ids of its input, of its results and of itself."""
    input_file, output_file = (f"file-{uuid.UUID(int=number).hex}" for number in (1, 2))
    batch = f"batch_{uuid.UUID(int=1).hex}"
    files = FileStore(settings.CONFIG.stored_files_dir)
    line = b'{"custom_id": "1"}\n'
    whose = {"account": "lab", "size_bytes": len(line)}
    for id in (input_file, output_file):
        files.write(id, [line])
    batches.file_add(
        file_id=input_file, name="questions.jsonl", purpose="batch", quota=LIMIT, **whose
    )
    fields = {"id": batch, "account": "lab", "dialect": "openai", "num_total": 1}
    fields |= {"endpoint": "/v1/chat/completions", "input_file": input_file}
    fields |= {"output_file": output_file, "error_file": f"file-{uuid.UUID(int=3).hex}"}
    batches.batch_create(lasts=timedelta(hours=24), max_open=10, fields=fields)
    batches.batch_claim(batch_id=batch, holder="g1")
    batches.result_save(file_id=output_file, name="answers.jsonl", purpose="batch_output", **whose)
    batches.batch_end(batch_id=batch, holder="g1", status="completed", counts={"num_completed": 1})
    return input_file, output_file, batch


def _bench() -> None:
    point = {"target_name": "gpu-box", "build": "abc1234", "model_id": "qwen"}
    point |= {"scenario_id": "chat:128", "ttft_s": 0.25, "decode_tps": 91.5}
    with tempfile.TemporaryDirectory() as folder:
        config, path = Path(folder) / "helexa-bench.toml", Path(folder) / "points.json"
        config.write_text(BENCH_TOML)
        file_import(actor=ALICE, path=config)
        path.write_text(json.dumps([point, point | {"decode_tps": 92.5}]))
        file_import(actor=ALICE, path=path)
    bench_job_request(actor=ALICE, job=BenchJob(target="gpu-box"))


def _conversation() -> str:
    """Returns its id. Alice has logged in for it, after a typing error."""
    login = {"username": "alice", "password": PASSWORD}
    client = Client(headers={"host": "localhost"})
    client.post("/login/", login | {"password": "corect horse"})
    client.force_login(User.objects.get(username="alice"))
    whose = {"user_id": User.objects.get(username="alice").pk, "conversation_id": uuid.UUID(int=1)}
    conversation_save(revision=NEW, state=parse_state(CONVERSATION), **whose)
    return str(uuid.UUID(int=1))
