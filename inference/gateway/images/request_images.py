"""Images of requests in the gateway: read with the operator's bounds, and sent beside the inbox.

    parse ─▶ addresses wanted? ─▶ fetch, parse again ─▶ ImageFile in the request
    run_request ─▶ without_files ─┬▶ the request, with ImageRef             through the inbox
                                  └▶ bytes ─▶ ImageSender ─▶ Redis, the request's own key

Images in Redis are deleted when the neuron has accepted the request, and expire where none does.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec
import redis
import redis.asyncio

from helexa_site.config import Config
from inference.gateway.images.fetch import ImageFetchError, fetch_image
from inference.gateway.server.bodies import parse_aside
from inference.protocol.generation import ChatInput, ChatMessage, Request
from inference.protocol.images import ImageRef
from inference.protocol.inbox_parts import image_fields
from inference.protocol.keys import images_key
from inference.redis_link import REDIS_BACKOFF, redis_unavailable
from inference.supervised_threads import SupervisedPool
from inference.wire.common.parts import ImageFile, ImageReading, ImageRules, images_read
from inference.wire.errors import InvalidImageError

logger = logging.getLogger(__name__)

T = TypeVar("T")
FETCHING_AT_ONCE = 8
KEPT_AFTER_DEADLINE_S = 60.0
PIECES_A_WRITE = 16
"""2 MiB: what a connection makes Redis hold meanwhile."""


def image_rules(config: Config) -> ImageRules:
    return ImageRules(
        max_bytes=config.max_image_bytes,
        max_pixels=config.max_image_pixels,
        max_images=config.max_images,
        max_total_bytes=config.max_images_bytes,
        fetches=bool(config.image_hosts),
    )


class ImageParser:
    def __init__(self, rules: ImageRules, hosts: Sequence[str]) -> None:
        self.rules = rules
        self._hosts = hosts
        self._threads = SupervisedPool(FETCHING_AT_ONCE, thread_name_prefix="images")

    async def parsed(self, parse: Callable[[], T], num_bytes: int) -> T:
        reading = ImageReading(rules=self.rules)
        parsed = await parse_aside(partial(_parse_with, reading, parse), num_bytes)
        if not reading.wanted:
            return parsed
        if len(reading.wanted) > self.rules.max_images:
            raise too_many(len(reading.wanted), self.rules, None)
        fetched = await self._fetched(reading.wanted)
        reading = ImageReading(rules=self.rules, fetched=fetched)
        return await parse_aside(partial(_parse_with, reading, parse), num_bytes)

    async def _fetched(self, wanted: Mapping[str, str]) -> dict[str, bytes]:
        fetched: dict[str, bytes] = {}
        loop = asyncio.get_running_loop()
        left_bytes = self.rules.max_total_bytes
        for url, path in wanted.items():
            most = min(self.rules.max_bytes, left_bytes)
            get = partial(fetch_image, url, self._hosts, max_bytes=most)
            try:
                fetched[url] = await loop.run_in_executor(self._threads, get)
            except ImageFetchError as error:
                raise InvalidImageError(str(error), path) from None
            left_bytes -= len(fetched[url])
        return fetched


def _parse_with(reading: ImageReading, parse: Callable[[], T]) -> T:
    with images_read(reading):
        return parse()


def without_files(request: Request, rules: ImageRules) -> tuple[Request, list[ImageFile]]:
    if not isinstance(request.input, ChatInput):
        return request, []
    chat = request.input
    files = [image for image in chat.images if isinstance(image, ImageFile)]
    if not files:
        return request, []
    _check_together(files, rules)
    messages = [_bare(message) for message in chat.messages]
    chat = msgspec.structs.replace(chat, messages=messages)
    return msgspec.structs.replace(request, input=chat), files


def _check_together(files: Sequence[ImageFile], rules: ImageRules) -> None:
    if len(files) > rules.max_images:
        raise too_many(len(files), rules, files[rules.max_images].path)
    num_bytes = 0
    for image in files:
        num_bytes += image.num_bytes
        if num_bytes > rules.max_total_bytes:
            raise InvalidImageError(
                f"the images of this request have more than {rules.max_total_bytes:,} bytes, "
                "which is the most together",
                image.path,
            )


def too_many(num_images: int, rules: ImageRules, path: str | None) -> InvalidImageError:
    reason = f"this request has {num_images} images; at most {rules.max_images} are read"
    return InvalidImageError(reason, path)


def _bare(message: ChatMessage) -> ChatMessage:
    if not message.parts:
        return message
    parts = [_ref(part) if isinstance(part, ImageFile) else part for part in message.parts]
    return msgspec.structs.replace(message, parts=parts)


def _ref(image: ImageFile) -> ImageRef:
    return ImageRef(
        digest=image.digest,
        media_type=image.media_type,
        width_px=image.width_px,
        height_px=image.height_px,
        num_bytes=image.num_bytes,
        is_low_detail=image.is_low_detail,
    )


class ImageSender:
    def __init__(self, client: redis.asyncio.Redis, *, stall_limit_s: float) -> None:
        self._client = client
        self._stall_limit_s = stall_limit_s
        self._forgetting: set[asyncio.Task[None]] = set()

    async def put(
        self, neuron: str, request_id: str, files: Sequence[ImageFile], *, timeout_s: float
    ) -> None:
        give_up_s = asyncio.get_running_loop().time() + self._stall_limit_s
        key = images_key(neuron, request_id)
        expiry_s = math.ceil(timeout_s + KEPT_AFTER_DEADLINE_S)
        for image in files:
            fields = list(image_fields(image.digest, image.data).items())
            for start in range(0, len(fields), PIECES_A_WRITE):
                some = dict(fields[start : start + PIECES_A_WRITE])
                await self._put_fields(key, some, expiry_s=expiry_s, give_up_s=give_up_s)

    async def _put_fields(
        self, key: str, fields: dict[str, bytes], *, expiry_s: int, give_up_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        num_failures = 0
        while True:
            try:
                # Both or neither: what has no expiry would stay.
                async with self._client.pipeline(transaction=True) as pipeline:
                    pipeline.hset(key, mapping=fields)  # type: ignore[arg-type]  # names are str
                    pipeline.expire(key, expiry_s)
                    await pipeline.execute()
            except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                if loop.time() >= give_up_s:
                    logger.warning("images cannot be put beside the inbox: %s", error)
                    raise redis_unavailable() from error
                num_failures += 1
                await asyncio.sleep(REDIS_BACKOFF.wait_s(num_failures))
            except redis.RedisError as error:  # it answers, and takes nothing
                logger.warning("Redis takes no images: %s", error)
                raise redis_unavailable() from error
            else:
                return

    def forget_soon(self, neuron: str, request_id: str) -> None:
        """An image whose deletion fails expires."""
        task = asyncio.create_task(self._forget(images_key(neuron, request_id)))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    async def _forget(self, key: str) -> None:
        try:
            await self._client.delete(key)
        except (redis.RedisError, OSError) as error:
            logger.info("images are not deleted, and expire: %s", error)
