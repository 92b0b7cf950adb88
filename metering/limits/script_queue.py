"""Calls of one Lua script, sent in the order in which they were made.

    call ─▶ pending ─▶ one pipeline of all that is pending ─▶ each call's future

Calls made while a pipeline is on its way go with the next one, so that a burst costs two
round trips and not one for each call. A caller that stops waiting cuts no reply in two.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import redis
import redis.asyncio
from redis.exceptions import NoScriptError


@dataclass(frozen=True, slots=True)
class _Call:
    keys: Sequence[str]
    arguments: Sequence[str | int]
    reply: asyncio.Future[list[int]]


class ScriptQueue:
    """Belongs to one event loop."""

    def __init__(self, client: redis.asyncio.Redis, source: str) -> None:
        self._redis = client
        self._source = source
        self._sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        self._pending: list[_Call] = []
        self._sender: asyncio.Task[None] | None = None

    def call(self, keys: Sequence[str], *arguments: str | int) -> asyncio.Future[list[int]]:
        """The script's reply. Fails with ``RedisError`` or ``OSError``."""
        reply: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._pending.append(_Call(keys, arguments, reply))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_pending())
        return reply

    async def flush(self) -> None:
        """Returns when all that was called has been answered or has failed."""
        if self._sender is not None:
            await asyncio.shield(self._sender)

    async def _send_pending(self) -> None:
        try:
            while self._pending:
                batch, self._pending = self._pending, []
                await self._send(batch)
        finally:
            self._sender = None

    async def _send(self, batch: list[_Call]) -> None:
        try:
            replies = await self._replies(batch)
            for call, reply in zip(batch, replies, strict=True):
                _answer(call.reply, reply)
        finally:
            for call in batch:
                call.reply.cancel()  # without effect on those that were answered

    async def _replies(self, batch: list[_Call]) -> Sequence[object]:
        """Each call's reply, or its error."""
        try:
            replies = await self._execute(batch, is_loaded=True)
            unknown = [
                index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)
            ]
            if unknown:  # by a Redis that was started since, or has not seen it yet
                again = await self._execute([batch[index] for index in unknown], is_loaded=False)
                for index, reply in zip(unknown, again, strict=True):
                    replies[index] = reply
        except (redis.RedisError, OSError) as error:
            return [error] * len(batch)
        return replies

    async def _execute(self, batch: list[_Call], *, is_loaded: bool) -> list[object]:
        pipeline = self._redis.pipeline(transaction=False)
        for index, call in enumerate(batch):
            if index == 0 and not is_loaded:
                pipeline.eval(self._source, len(call.keys), *call.keys, *call.arguments)
            else:
                pipeline.evalsha(self._sha, len(call.keys), *call.keys, *call.arguments)
        return await pipeline.execute(raise_on_error=False)


def _answer(waiting: asyncio.Future[list[int]], reply: object) -> None:
    if waiting.done():
        return
    if isinstance(reply, BaseException):
        waiting.set_exception(reply)
    else:
        assert isinstance(reply, list | int)
        waiting.set_result(reply if isinstance(reply, list) else [reply])
