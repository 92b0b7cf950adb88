"""A neuron's surroundings: the fake engine's command, specs for it, and a gateway's reader."""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from inference.backoff import Backoff
from inference.neuron.device_sampler import DeviceSampler
from inference.neuron.name_lease import connect
from inference.neuron.replicas.retries import RestartPolicy
from inference.neuron.service import NeuronService
from inference.protocol import events as protocol
from inference.protocol.delivery import inbox_entries
from inference.protocol.generation import (
    Cancel,
    GenerationRequest,
    InboxFrame,
    TextInput,
    encode_inbox_frame,
)
from inference.protocol.heartbeat import NeuronHeartbeat, ReplicaState, decode_heartbeat
from inference.protocol.keys import (
    EVENTS_FIRST_ENTRY_ID,
    events_key,
    gateway_alive_key,
    heartbeat_key,
    inbox_key,
)
from inference.protocol.load import EarlierLoads, LoadSpec
from inference.protocol.load_report import LoadFailure
from inference.text.tokenizer import Tokenizer
from tests.inference.neuron.devices import Machine, card, host
from tests.inference.neuron.model_texts import request_for_model, submit_of
from tests.processes import command_line
from tests.sandbox_workers import WORKERS
from tests.servers.private_redis import MortalRedis, mortal_redis

FAKE_ENGINE = Path(__file__).parent / "fake_engine.py"
ENGINE_COMMAND = [sys.executable, str(FAKE_ENGINE)]
SPEC_FIELDS = frozenset(LoadSpec.__struct_fields__)
WAIT_S = 120.0
BACKOFF = Backoff(first_s=0.01, max_s=30.0)
DEVICES = functools.cache(DeviceSampler)
"""Of this host."""


class PanicError(BaseException):
    """Stands for PyO3's ``PanicException``."""


class TestGateway:
    """Puts frames into a neuron's inbox and reads what comes up, as a gateway does."""

    __test__ = False

    def __init__(self, client: redis.Redis, neuron: str, gateway_id: str = "gw") -> None:
        self.client = client
        self.neuron = neuron
        self.gateway_id = gateway_id
        self.batches: list[protocol.EventBatch] = []
        self._ids = itertools.count(1)
        self._last_entry: bytes | str = EVENTS_FIRST_ENTRY_ID
        self.stay_alive()

    def stay_alive(self) -> None:
        """With a stream for its events."""
        self.client.set(gateway_alive_key(self.gateway_id), b"1", ex=3600)
        key = events_key(self.neuron, self.gateway_id)
        if not self.client.exists(key):
            self.client.xadd(key, {b"": b""}, id=EVENTS_FIRST_ENTRY_ID)

    def put(self, frame: InboxFrame) -> None:
        for entry in inbox_entries(encode_inbox_frame(frame)):
            self.client.xadd(inbox_key(self.neuron), entry)  # type: ignore[arg-type]

    def submit(
        self,
        text: str = "The capital of France is Paris.",
        *,
        model: str = "m",
        deadline_s: float = 60.0,
        request: GenerationRequest | None = None,
        **sampling: Any,
    ) -> str:
        request_id = f"{self.gateway_id}-{next(self._ids)}"
        made = request or request_for_model(TextInput(texts=[text]), **sampling)
        deadline_unix_s = time.time() + deadline_s
        given = {"gateway_id": self.gateway_id, "deadline_unix_s": deadline_unix_s}
        self.put(submit_of(request_id, made, model=model, **given))
        return request_id

    def cancel(self, request_id: str) -> None:
        self.put(Cancel(request_id=request_id))

    def read(self) -> None:
        key = events_key(self.neuron, self.gateway_id)
        for _, entries in self.client.xread({key: self._last_entry}, block=50) or []:
            for entry_id, fields in entries:
                self._last_entry = entry_id
                self.batches.append(protocol.decode_event_batch(fields[protocol.EVENT_BATCH_FIELD]))

    def events(self, request_id: str) -> list[protocol.Event]:
        events = [event for batch in self.batches for event in batch.events]
        return [event for event in events if event.request_id == request_id]

    def wait_events(
        self, request_id: str, is_enough: Callable[[list[protocol.Event]], bool]
    ) -> list[protocol.Event]:
        def enough() -> bool:
            self.read()
            return is_enough(self.events(request_id))

        wait_until(enough)
        return self.events(request_id)

    def wait_running(self, request_id: str) -> str:
        """Until it has some tokens."""
        self.wait_events(request_id, lambda events: len(events) > 2)
        return request_id

    def wait_end(self, request_id: str) -> list[protocol.Event]:
        return self.wait_events(
            request_id,
            lambda events: bool(events) and isinstance(events[-1], protocol.TERMINAL_EVENTS),
        )

    def latest_heartbeat(self) -> NeuronHeartbeat | None:
        data = self.client.get(heartbeat_key(self.neuron))
        return decode_heartbeat(data) if data else None

    def heartbeat(self) -> NeuronHeartbeat:
        """The latest. Where it expired, because its neuron got no time, the next one."""
        return wait_until(self.latest_heartbeat)

    def replica(self, model: str = "m") -> ReplicaState | None:
        heartbeat = self.latest_heartbeat()
        replicas = heartbeat.replicas if heartbeat else []
        return next((one for one in replicas if one.model == model), None)

    def is_idle(self) -> bool:
        """The engine has stepped and reports no sequences; the fake one reports its steps."""
        stats = state.stats if (state := self.replica()) else None
        return stats is not None and not stats.in_flight and stats.decode_tokens_per_s > 0

    def wait_status(self, status: str, model: str = "m", job_id: str | None = None) -> Any:
        """Returns the very state that was waited for: the next may have another status."""
        return wait_until(
            lambda: (
                (state := self.replica(model))
                and (state.status, job_id or state.job_id) == (status, state.job_id)
                and state
            )
        )


def wait_until(find: Callable[[], Any], timeout_s: float = WAIT_S) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := find()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return found


def running_engines(neuron_pid: int | None = None) -> list[psutil.Process]:
    """Returns the fake engine's running processes of a neuron, else of this process."""
    children = psutil.Process(neuron_pid).children(recursive=True)
    return [child for child in children if FAKE_ENGINE.name in " ".join(command_line(child))]


@pytest.fixture
def gateway(redis_db: redis.Redis) -> TestGateway:
    return TestGateway(redis_db, "n1")


class TestNeuron:
    """A whole neuron but for Celery, and its gateway. It starts when it is first used."""

    __test__ = False

    def __init__(self, redis_url: str, directory: Path, gateway: TestGateway) -> None:
        self.url = redis_url
        self.directory = directory
        """Its models' tokenizer."""
        self.gateway = gateway
        self.options: dict[str, Any] = {}
        """What its service is made with."""
        self.services: list[NeuronService] = []

    def start(self, **changes: Any) -> NeuronService:
        options = {
            "name": "n1",
            "client": connect(self.url),
            "engine_command": ENGINE_COMMAND,
            "discovery": DEVICES(),
            "restart_policy": RestartPolicy(backoff=BACKOFF, max_quick_failures=2),
            "workers": WORKERS,
        }
        self.services.append(NeuronService(**(options | changes)))
        self.services[-1].start()
        return self.services[-1]

    def spec(
        self, model: str = "m", job_id: str = "j1", *, needs_gb: float | None = None, **options: Any
    ) -> LoadSpec:
        """``spec(rate=50, evict=["a"])``: one for the fake engine with its options and with fields
        of the spec. ``needs_gb``: what an earlier load on a card needed."""
        if needs_gb is not None:
            needed_bytes = int(needs_gb * 10**9)
            options["earlier_loads"] = EarlierLoads(device_kind="cuda", needed_bytes=needed_bytes)
        fields = {name: options.pop(name) for name in [*options] if name in SPEC_FIELDS}
        words = ",".join(f"{name}={value}" for name, value in ({"rate": 200} | options).items())
        made = {"order": "ordered", "source": f"fake:{words}", "file": str(self.directory)}
        return LoadSpec(job_id=job_id, model=model, **(made | fields))

    @functools.cached_property
    def service(self) -> NeuronService:
        return self.start(**self.options)

    def load(self, *name: str, status: str | None = "ready", **options: Any) -> Any:
        """Returns the replica's state once that job has given it that status."""
        spec = self.spec(*name, **options)
        self.service.load_model(spec)
        return status and self.gateway.wait_status(status, spec.model, spec.job_id)

    def refused(self, *name: str, **options: Any) -> LoadFailure:
        return self.load(*name, status="failed", **options).failure

    def submit(self, *text: str, **options: Any) -> str:
        self.service  # noqa: B018 - starts it
        request_id = self.gateway.submit(*text, **options)
        self.service.drain_inbox()
        return request_id

    def ask(self, *text: str, **options: Any) -> list[Any]:
        return self.gateway.wait_end(self.submit(*text, **options))

    def running(self, **options: Any) -> str:
        return self.gateway.wait_running(self.submit(**options))

    def end(self, request_id: str) -> list[Any]:
        self.gateway.cancel(request_id)
        self.service.drain_inbox()
        return self.gateway.wait_end(request_id)

    def answers(self, model: str = "m") -> bool:
        return isinstance(self.ask(model=model, max_tokens=2)[-1], protocol.Finished)

    def wait_gone(self, model: str = "m") -> None:
        wait_until(lambda: self.gateway.replica(model) is None)


@pytest.fixture
def neuron(redis_url: str, byte_level_dir: Path, gateway: TestGateway) -> Iterator[TestNeuron]:
    neuron = TestNeuron(redis_url, byte_level_dir, gateway)
    yield neuron
    for service in neuron.services:
        service.stop()
    assert not running_engines()


@pytest.fixture
def cards(neuron: TestNeuron) -> Machine:
    cards = Machine(card(0, 6), card(1, 20), host(100))
    neuron.options["discovery"] = cards
    return cards


@pytest.fixture
def loaded(neuron: TestNeuron) -> TestNeuron:
    neuron.load()
    return neuron


def failure_of(events: list[protocol.Event]) -> protocol.Failure:
    (failed,) = [event for event in events if isinstance(event, protocol.Failed)]
    return failed.failure


CONFIG = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96,
"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
"num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5}"""


@pytest.fixture
def three_layers(tmp_path: Path) -> Path:
    """A model's directory with a config, of which only that is read."""
    directory = tmp_path / "three-layers"
    directory.mkdir()
    (directory / "config.json").write_text(CONFIG)
    (directory / "model.safetensors").touch()
    return directory


@pytest.fixture(scope="module")
def tokenizer(byte_level_dir: Path) -> Tokenizer:
    return Tokenizer.load(byte_level_dir)


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MortalRedis]:
    run_dir: Path = tmp_path_factory.mktemp("r")
    with mortal_redis(run_dir) as server:
        yield server
