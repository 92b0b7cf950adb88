"""TLS in front of a Redis that was built without it, for tests of its clients."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

CHUNK_BYTES = 65536
START_TIMEOUT_S = 60.0


class TlsFront:
    """Listens on a port of loopback, and hands on what it reads to the socket of a Redis."""

    def __init__(self, chain: Path, key: Path, redis_socket: Path) -> None:
        self.port = 0
        self._redis_socket = redis_socket
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(chain, key)
        self._loop = asyncio.new_event_loop()
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._listens.wait(START_TIMEOUT_S), "it does not listen"

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._ended = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._listens.set()
        await self._ended.wait()
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._connect(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_writer = None
        try:
            redis_reader, redis_writer = await asyncio.open_unix_connection(self._redis_socket)
            ways = [_copy(reader, redis_writer), _copy(redis_reader, writer)]
            _, left = await asyncio.wait(
                [self._loop.create_task(way) for way in ways], return_when="FIRST_COMPLETED"
            )
            for way in left:
                way.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        except OSError:
            pass  # Redis is away
        finally:
            for each in (writer, redis_writer):
                if each is not None:
                    each.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


@contextlib.contextmanager
def tls_front(chain: Path, key: Path, redis_socket: Path) -> Iterator[int]:
    """Its port."""
    front = TlsFront(chain, key, redis_socket)
    try:
        yield front.port
    finally:
        front.end()
