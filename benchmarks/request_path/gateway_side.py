"""A gateway with its HTTP server in this process, asked through its connection's own object."""

from __future__ import annotations

import asyncio
import json
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import daphne.server  # noqa: F401 -- before anything of Twisted: it installs the reactor

from benchmarks.request_path.recorder import Files, Recorder
from fleet.catalogue import CatalogueEntry
from helexa_site.config import Config
from helexa_site.routing import build_application, errors_of
from inference.gateway.gateway import Gateway
from inference.gateway.server.daphne_server import DaphneServer, StreamFactory
from inference.protocol.heartbeat import ReplicaStatus
from metering.ledger.entries import Settle
from metering.ledger.spool import Count, count_nothing
from metering.principal import Principal, anonymous_principal

ON_THE_WAY: ContextVar[bool] = ContextVar("on the way of a request", default=False)
"""Set in the tasks of requests, and in no background loop's."""
START_TIMEOUT_S = 300.0
SETTLE_TIMEOUT_S = 30.0
CHAT = "/v1/chat/completions"
END = b"data: [DONE]"


class Catalogue:
    """One model, in memory."""

    def __init__(self, entry: CatalogueEntry) -> None:
        self._entry = entry

    async def find(self, name: str) -> CatalogueEntry:
        return self._entry

    async def by_name(self) -> dict[str, CatalogueEntry]:
        return {self._entry.name: self._entry}


class Directory:
    """No caller has a key."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    def anonymous(self) -> Principal:
        return anonymous_principal(budgets=())


class Ledger:
    """Counts the settled requests."""

    is_full = False
    depth = num_spooled = 0
    age_s = 0.0
    spool_problem = None

    def __init__(self) -> None:
        self.num_settled = 0

    def start(self) -> None: ...

    async def stop(self, timeout_s: float) -> None: ...

    def begin(self, settle: Settle) -> Count:
        return count_nothing

    def settle(self, settle: Settle) -> None:
        self.num_settled += 1


class Wire:
    """The client's end of a connection."""

    disconnecting = False

    def __init__(self) -> None:
        self.received = b""
        self.ended = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.received += data
        if END in self.received:
            self.ended.set()

    def writeSequence(self, pieces: list[bytes]) -> None:  # noqa: N802
        self.write(b"".join(pieces))

    def getPeer(self) -> None:  # noqa: N802
        return None

    getHost = getPeer  # noqa: N815

    def loseConnection(self) -> None:  # noqa: N802
        self.ended.set()


async def chats(
    redis_url: str, data_dir: Path, model: str, recorder: Recorder, *, num_chats: int
) -> list[dict[str, Files]]:
    """What each of so many chats passed, by process, after one that is not recorded."""
    ledger = Ledger()
    gateway = Gateway(
        _config(redis_url, data_dir),
        Catalogue(CatalogueEntry(name=model, source="path:/unused")),  # type: ignore[arg-type]
        directory=Directory(),  # type: ignore[arg-type]
        make_ledger=lambda _id: ledger,  # type: ignore[arg-type,return-value]
    )
    server = DaphneServer(
        build_application(gateway, django_app=None),
        host="127.0.0.1",
        port=0,
        max_body_bytes=gateway.config.max_body_bytes,
        errors_of=errors_of,
        check_headers=gateway.check_headers,
        on_refused=lambda *_: None,
        on_left=lambda _: None,
        clients=SimpleNamespace(opened=lambda _: None, closed=lambda _: None),  # type: ignore[arg-type]
    )
    server.connections = {}
    try:
        gateway.ensure_started()
        async with asyncio.timeout(START_TIMEOUT_S):
            while not await _is_ready(gateway, model):
                await asyncio.sleep(0.05)
        found = [
            await _chat(server, ledger, model, recorder, gateway) for _ in range(num_chats + 1)
        ]
        return found[1:]
    finally:
        await gateway.drain(0)


async def _is_ready(gateway: Gateway, model: str) -> bool:
    snapshot = await gateway.liveness.snapshot()
    return any(replica.status is ReplicaStatus.READY for replica in snapshot.replicas_of(model))


async def _chat(
    server: DaphneServer, ledger: Ledger, model: str, recorder: Recorder, gateway: Gateway
) -> dict[str, Files]:
    wire = Wire()
    channel: Any = StreamFactory(server).buildProtocol(None)
    channel.makeConnection(wire)
    body = json.dumps(
        {
            "model": model,
            "stream": True,
            "max_tokens": 4,
            "temperature": 0,
            "messages": [{"role": "user", "content": "Hi"}],
        }
    ).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    before = ledger.num_settled
    await gateway.liveness.snapshot()  # a chat seldom waits for one
    files: dict[str, Files] = {}
    recorder.files = files
    token = ON_THE_WAY.set(True)
    try:
        channel.dataReceived(head.encode() + body)
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            await wire.ended.wait()
            while ledger.num_settled == before:
                await asyncio.sleep(0.01)
    finally:
        ON_THE_WAY.reset(token)
        recorder.files = None
    assert b"200 OK" in wire.received, wire.received
    return files


def _config(redis_url: str, data_dir: Path) -> Config:
    return Config(
        data_dir=data_dir,
        database_url="sqlite://",
        redis_url=redis_url,
        secret_key=None,
        debug=False,
        allowed_hosts=("*",),
        csrf_trusted_origins=(),
        max_body_bytes=2**20,
        request_timeout_s=60,
        api_key=None,
        always_stream_usage=False,
        allow_anonymous=None,
        listen_host="127.0.0.1",
    )
