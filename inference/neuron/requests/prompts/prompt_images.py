"""A prompt's images: where they stand among its tokens, and their bytes.

    template ─▶ tokens with one pad for each image ─▶ placed ─▶ as many pads as it has tokens
    Redis, the request's own key ─▶ RedisImageReader ─▶ bytes by digest

How many tokens an image has follows from its size, so nothing is decoded here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from inference.neuron.errors import RequestRefusedError
from inference.protocol.events import Failure
from inference.protocol.generation import ChatInput
from inference.protocol.images import (
    ImageRatioError,
    ImageRef,
    SequenceImage,
    VisionInput,
    image_grid,
    num_image_tokens,
)
from inference.protocol.inbox_parts import PARTS_A_READ, image_field_names
from inference.protocol.keys import images_key

log = logging.getLogger(__name__)

PARAM = "messages"
READ_AGAIN_S = 0.5
READ_FOR_S = 10.0
"""How long a Redis that does not answer is asked again."""


@dataclass(frozen=True, slots=True)
class PlacedImage:
    image: ImageRef
    first_token: int
    num_tokens: int
    grid: tuple[int, int, int]

    def with_data(self, data: bytes) -> SequenceImage:
        return SequenceImage(
            digest=self.image.digest,
            data=data,
            first_token=self.first_token,
            num_tokens=self.num_tokens,
            grid=self.grid,
        )


def images_of(chat: ChatInput) -> list[ImageRef]:
    return [image for message in chat.messages for image in message.images]


def check_sees(images: Sequence[ImageRef], vision: VisionInput | None) -> None:
    """Raises ``RequestRefusedError``."""
    if images and vision is None:
        message = "This model reads text only; it was sent an image."
        raise _refused("vision_unsupported", message)


def placed(
    token_ids: list[int], images: Sequence[ImageRef], vision: VisionInput | None
) -> tuple[list[int], list[PlacedImage]]:
    """``token_ids`` as the template has them. Each image's pad is repeated once for each of its
    tokens. Raises ``RequestRefusedError``."""
    if vision is None or not images:
        return token_ids, []
    pads = [index for index, token in enumerate(token_ids) if token == vision.pad_token_id]
    if len(pads) != len(images):
        raise _wrong_number(len(pads), len(images))
    whole: list[int] = []
    found: list[PlacedImage] = []
    rest = 0
    for image, pad in zip(images, pads, strict=True):
        grid = _grid(image, vision)
        num_tokens = num_image_tokens(grid, vision.merge)
        whole += token_ids[rest:pad]
        found.append(PlacedImage(image, len(whole), num_tokens, grid))
        whole += [vision.pad_token_id] * num_tokens
        rest = pad + 1
    return whole + token_ids[rest:], found


def _grid(image: ImageRef, vision: VisionInput) -> tuple[int, int, int]:
    try:
        return image_grid(image.width_px, image.height_px, vision)
    except ImageRatioError as error:
        raise _refused("invalid_image", str(error)) from None


def _wrong_number(num_pads: int, num_images: int) -> RequestRefusedError:
    """A text that holds the placeholder would move every image after it to another place."""
    if num_pads > num_images:
        message = "a text holds the words that stand for an image in this model's prompts"
        return _refused("invalid_value", message)
    message = (
        f"this model's chat template has no place for {num_images - num_pads} of {num_images} "
        "images"
    )
    return _refused("template_render_failed", message)


def sequence_images(
    found: Iterable[PlacedImage], data_of: Mapping[str, bytes]
) -> list[SequenceImage]:
    """Raises ``RequestRefusedError``: an image that is not there was kept too short, or Redis has
    lost it."""
    made = []
    for one in found:
        data = data_of.get(one.image.digest)
        if data is None:
            message = "an image of this request is not there any more; send it again"
            raise _refused("image_lost", message, param=None)
        made.append(one.with_data(data))
    return made


def _refused(code: str, message: str, *, param: str | None = PARAM) -> RequestRefusedError:
    return RequestRefusedError(Failure(code=code, message=message, param=param))


class RedisImageReader:
    """Any thread may ask."""

    def __init__(self, client: redis.Redis, *, neuron: str) -> None:
        self._client = client
        self._neuron = neuron
        self._stopped = threading.Event()

    def read(self, request_id: str, images: Iterable[ImageRef]) -> dict[str, bytes]:
        """The images' bytes by their digests; one that is not there whole is left out. Raises
        ``RequestRefusedError`` where Redis does not answer."""
        key = images_key(self._neuron, request_id)
        held: dict[str, bytes] = {}
        for digest, num_bytes in {image.digest: image.num_bytes for image in images}.items():
            pieces: list[bytes | None] = []
            names = image_field_names(digest, num_bytes)
            for start in range(0, len(names), PARTS_A_READ):
                pieces += self._read_fields(request_id, key, names[start : start + PARTS_A_READ])
            whole = [piece for piece in pieces if piece is not None]
            if len(whole) == len(pieces):
                held[digest] = b"".join(whole)
        return held

    def _read_fields(
        self, request_id: str, key: str, names: Sequence[str]
    ) -> Sequence[bytes | None]:
        give_up_s = time.monotonic() + READ_FOR_S
        while True:
            try:
                pieces: Any = self._client.hmget(key, names)
            except redis.RedisError as error:
                if time.monotonic() >= give_up_s or self._stopped.wait(READ_AGAIN_S):
                    log.warning("request %s: its images cannot be read: %s", request_id, error)
                    raise _refused(
                        "redis_unavailable", "Redis does not answer; try again shortly.", param=None
                    ) from error
            else:
                values: list[bytes | None] = pieces
                return values

    def stop(self) -> None:
        """Stop waiting for Redis."""
        self._stopped.set()
