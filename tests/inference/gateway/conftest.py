"""A gateway over a real Redis, with a fake neuron and a fake catalogue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio
import redis.asyncio
import uvicorn

from fleet.catalogue import CatalogueEntry
from fleet.placement import Load
from helexa_site.config import Config, read_config
from helexa_site.routing import build_application
from inference.gateway import batch_store, database, response_store
from inference.gateway.database import DatabaseThreads
from inference.gateway.gateway import Gateway
from inference.gateway.request.event_stream import RequestStreams
from inference.settings.gateway import METRICS_OFF
from inference.wire.errors import ApiError, ModelNotFoundError
from inference.wire.ollama.models import PullRequest, PullState
from metering.audit import Actor
from metering.ledger.entries import Settle
from tests.inference.gateway.asgi_client import AsgiClient, Exchange
from tests.inference.gateway.fake_metering import KEY, FakeDirectory, FakeLedger
from tests.inference.gateway.fake_neuron import FakeNeuron

OPERATOR = {"authorization": "Bearer of-serve"}
"""Headers of an operator, who may read everything."""
CHAT = "/v1/chat/completions"
GATEWAY = "g1"
GENEROUS_S = 60.0
SHORT_CHAT: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}
BEARER = {"authorization": f"Bearer {KEY}", "user-agent": "OpenAI/Python 3.1"}
ENTRY = CatalogueEntry(name="tiny", source="path:/models/tiny", aliases=("gpt-4o",), pinned=True)


class FakeCatalogue:
    """``failure`` is raised instead of every answer while it is set."""

    def __init__(self) -> None:
        self.listed = [ENTRY]
        self.loads: list[tuple[str, str]] = []

        self.pulled: list[tuple[PullRequest, Actor]] = []
        self.pulls: list[PullState] = []
        self.pulls_cancelled: asyncio.Queue[str] = asyncio.Queue()
        self.pulls_offered: list[str] = []
        self.cut_off: list[tuple[str, str]] = []
        self.failure: ApiError | None = None

    async def find(self, name: str) -> CatalogueEntry:
        self._fail()
        for entry in self.listed:
            if name in (entry.name, *entry.aliases):
                return entry
        raise ModelNotFoundError(name)

    async def entries(self) -> tuple[CatalogueEntry, ...]:
        self._fail()
        return tuple(self.listed)

    async def by_name(self) -> dict[str, CatalogueEntry]:
        self._fail()
        return {entry.name: entry for entry in self.listed}

    async def start_load(self, load: Load) -> None:
        self._fail()
        self.loads.append((load.model, load.neuron))

    async def cut_off_neuron(self, neuron: str, reason: str) -> None:
        self.cut_off.append((neuron, reason))

    async def query(self, query: Callable[..., Any], *args: Any) -> Any:
        return await getattr(self, query.__name__)(*args)

    async def pull_start(self, request: PullRequest, actor: Actor) -> PullState:
        """What ``pulls`` has next; a model is one of the catalogue."""
        self._fail()
        if request.model is not None:
            await self.find(request.model)
        self.pulled.append((request, actor))
        return self.pulls.pop(0)

    async def pull_look(self, before: PullState) -> PullState:
        """The next state; the last one repeats."""
        return self.pulls.pop(0) if len(self.pulls) > 1 else self.pulls[0]

    async def pull_cancel(self, state: PullState, actor: Actor) -> None:
        self.pulls_cancelled.put_nowait(state.id)

    async def pull_offer(self, request: PullRequest, state: PullState, actor: Actor) -> None:
        self.pulls_offered.append(request.called)

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def config(redis_url: str, tmp_path: Path) -> Config:
    return replace(
        read_config({}),
        data_dir=tmp_path,
        database_url="sqlite://",
        redis_url=redis_url,
        secret_key="secret",
        secret_key_is_kept=True,
        allowed_hosts=("*",),
        max_body_bytes=100_000,
        request_timeout_s=20,
        metrics=METRICS_OFF,
        listen_host="127.0.0.1",
        serve_key="of-serve",
    )


@pytest.fixture
def catalogue() -> FakeCatalogue:
    return FakeCatalogue()


@pytest.fixture
def directory() -> FakeDirectory:
    return FakeDirectory()


@pytest.fixture
def ledger() -> FakeLedger:
    return FakeLedger()


@pytest_asyncio.fixture
async def redis_client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(redis_url, protocol=2)
    yield client
    await client.aclose()


@pytest_asyncio.fixture
async def neuron(redis_client: redis.asyncio.Redis) -> AsyncIterator[FakeNeuron]:
    fake = FakeNeuron(redis_client)
    await fake.beat()
    serving = asyncio.create_task(fake.serve())
    yield fake
    fake.stop()
    fake.closing = True
    await serving


@pytest_asyncio.fixture
async def idle_neuron(neuron: FakeNeuron) -> None:
    """So that batches run."""
    neuron.queue_depth = 0
    await neuron.beat()


MakeGateway = Callable[..., Gateway]
MakeClient = Callable[..., AsgiClient]


@pytest_asyncio.fixture
async def make_gateway(
    config: Config, catalogue: FakeCatalogue, directory: FakeDirectory, ledger: FakeLedger
) -> AsyncIterator[MakeGateway]:
    """A gateway with other settings: the changes of ``Config`` by name."""
    gateways: list[Gateway] = []

    def make(**changes: object) -> Gateway:
        changed = replace(config, **changes)  # type: ignore[arg-type]
        fakes: Any = {"directory": directory, "make_ledger": lambda _id: ledger}
        gateways.append(Gateway(changed, catalogue, **fakes))
        return gateways[-1]

    yield make
    for gateway in gateways:
        await gateway.drain(0)


@pytest_asyncio.fixture
async def gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway()


@pytest_asyncio.fixture
async def make_client(make_gateway: MakeGateway) -> MakeClient:
    return lambda **changes: client_of(make_gateway(**changes))


def client_of(gateway: Gateway) -> AsgiClient:
    return AsgiClient(build_application(gateway, django_app=not_django))


async def not_django(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b"django", "more_body": False})


@pytest.fixture
def client(gateway: Gateway) -> AsgiClient:
    return client_of(gateway)


@dataclass(slots=True, kw_only=True)
class Rig:
    """A gateway with everything around it but its neurons."""

    client: AsgiClient
    gateway: Gateway
    catalogue: FakeCatalogue
    directory: FakeDirectory
    ledger: FakeLedger

    def open(self, **fields: Any) -> Exchange:
        """A chat by ``KEY``."""
        return self.client.open("POST", CHAT, {**SHORT_CHAT, **fields}, headers=BEARER)

    async def ask(self, **fields: Any) -> Exchange:
        return await self.open(**fields).finish()

    def cap(self, tokens: int | None = None) -> None:
        """The key's requests are charged to one budget."""
        self.directory.restrict(KEY, budgets=(1,))
        if tokens is not None:
            self.ledger.cap_tokens = tokens

    @property
    def settled(self) -> Settle:
        """The ledger's only entry."""
        (entry,) = self.ledger.settled
        return entry


def parts_of(rig: Rig) -> dict[str, Any]:
    """The fields of a rig, for one that has more."""
    return {field.name: getattr(rig, field.name) for field in fields(rig)}


@pytest.fixture
def rig(
    client: AsgiClient,
    gateway: Gateway,
    catalogue: FakeCatalogue,
    directory: FakeDirectory,
    ledger: FakeLedger,
) -> Rig:
    return Rig(
        client=client, gateway=gateway, catalogue=catalogue, directory=directory, ledger=ledger
    )


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> DatabaseThreads:
    """The one thread through which gateway and test use the database: that of the tests is in
    memory and refuses two at once instead of waiting."""
    monkeypatch.setattr(database, "NUM_THREADS", 1)
    threads = DatabaseThreads("test")
    for store in (response_store, batch_store):
        monkeypatch.setattr(store, "DatabaseThreads", lambda _name: threads)
    return threads


@pytest_asyncio.fixture
async def server_url(gateway: Gateway, neuron: FakeNeuron) -> AsyncIterator[str]:
    """A server in this process, for SDKs to talk to."""
    application = build_application(gateway, django_app=not_django)
    config = uvicorn.Config(application, port=0, lifespan="off", log_level="warning")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await serving


@pytest_asyncio.fixture
async def sdk(server_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server_url}/v1", api_key="x", max_retries=0
    ) as client:
        yield client


@pytest_asyncio.fixture
async def anthropic_sdk(server_url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=server_url, api_key="x", max_retries=0) as client:
        yield client


@pytest.fixture
def streams() -> RequestStreams:
    return RequestStreams()
