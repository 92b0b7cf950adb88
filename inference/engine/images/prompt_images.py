"""The images of one prompt: whose tokens are where, and by what each token is rotated. Knows no
tensors of models.

    tokens   a b c [ 2 x 3 tokens ] d e       time    0 1 2 3 3 3 3 3 3 6 7
                                              height  0 1 2 3 3 3 4 4 4 6 7
                                              width   0 1 2 3 4 5 3 4 5 6 7

An image is one moment, and as long as its longer side: what follows it lags behind its position.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import numpy as np
import numpy.typing as npt

from inference.models.vision_config import VisionConfig
from inference.protocol.images import SequenceImage, num_image_tokens

Ints = npt.NDArray[np.int64]


class PromptImages:
    """``images`` have no ``image_problem``."""

    def __init__(self, images: Ordered[SequenceImage], num_prompt_tokens: int, merge: int) -> None:
        self.images = tuple(images)
        self._places = _places(self.images, num_prompt_tokens, merge)
        self.lag = num_prompt_tokens - 1 - int(self._places[:, -1].max())
        """By how much an output token's time, height and width are below its position."""

    def places(self, start: int, end: int) -> Ints:
        """(3, end - start) time, height and width of the tokens at positions [start, end), which
        may be outputs."""
        known = self._places[:, start:end]
        outputs = np.arange(max(start, self._places.shape[1]), end) - self.lag
        return np.concatenate((known, np.tile(outputs, (3, 1))), axis=1) if len(outputs) else known

    def overlapping(self, start: int, end: int) -> list[SequenceImage]:
        """Those with tokens at positions [start, end)."""
        return [
            image
            for image in self.images
            if image.first_token < end and start < image.first_token + image.num_tokens
        ]

    def end_with_images(self, start: int, end: int, num_images: int) -> int:
        """Where a chunk of [start, end) ends that has tokens of ``num_images`` images at most."""
        found = self.overlapping(start, end)
        return end if len(found) <= num_images else max(start, found[num_images].first_token)

    def content(self, start: int, end: int) -> tuple[str, ...]:
        """What the tokens at [start, end) do not say of what is there."""
        return tuple(image.digest for image in self.overlapping(start, end))


def _places(images: Ordered[SequenceImage], num_tokens: int, merge: int) -> Ints:
    found = np.empty((3, num_tokens), dtype=np.int64)
    token = place = 0
    for image in images:
        first, last = image.first_token, image.first_token + image.num_tokens
        found[:, token:first] = np.arange(place, place + first - token)
        place += first - token
        height, width = image.grid[1] // merge, image.grid[2] // merge
        found[0, first:last] = place
        found[1, first:last] = place + np.repeat(np.arange(height), width)
        found[2, first:last] = place + np.tile(np.arange(width), height)
        place += max(height, width)
        token = last
    found[:, token:] = np.arange(place, place + num_tokens - token)
    return found


def image_problem(
    images: Ordered[SequenceImage], token_ids: list[int], vision: VisionConfig | None
) -> tuple[str, str] | None:
    """Why a prompt with these images can never run here: code and message for the client."""
    if not images:
        return None
    if vision is None:
        return "vision_unsupported", "this model reads text only"
    end = 0
    for image in images:
        first, last = image.first_token, image.first_token + image.num_tokens
        time, height, width = image.grid
        is_even = time == 1 and height % vision.merge == 0 and width % vision.merge == 0
        if not is_even or image.num_tokens != num_image_tokens(image.grid, vision.merge):
            return "invalid_image", "an image's size and its number of tokens do not fit"
        if not image.num_tokens > 0 or height * width > vision.most_patches:
            return "invalid_image", "an image has more pixels than the model is given"
        pads = token_ids[first:last]
        if first < end or last > len(token_ids) or set(pads) != {vision.image_token_id}:
            return "invalid_image", "an image's tokens are not where the prompt has them"
        end = last
    return None
