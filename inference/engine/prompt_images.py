"""The images of one prompt: the positions of their tokens, and the places that rotate tokens.
Knows no tensors of models.

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
from inference.protocol.engine import SubmitSequence
from inference.protocol.images import SequenceImage, TokenRun

Ints = npt.NDArray[np.int64]


class PromptImages:
    def __init__(
        self,
        images: Ordered[SequenceImage],
        num_prompt_tokens: int,
        merge: int,
        *,
        has_places: bool = True,
        are_seen_whole: bool = False,
    ) -> None:
        """``has_places``: tokens are rotated by time, height and width, not by position.
        ``are_seen_whole``: an image's tokens attend to all of it, so no chunk may end within it."""
        self.images = tuple(images)
        self.has_places = has_places
        self.are_seen_whole = are_seen_whole
        placed = self.images if has_places else ()
        self._places = _places(placed, num_prompt_tokens, merge)
        self.lag = num_prompt_tokens - 1 - int(self._places[:, -1].max())
        """How far an output token's time, height and width are below its position."""

    def places(self, start: int, end: int) -> Ints:
        """(3, end - start) time, height and width of the tokens [start, end), outputs included."""
        known = self._places[:, start:end]
        outputs = np.arange(max(start, self._places.shape[1]), end) - self.lag
        return np.concatenate((known, np.tile(outputs, (3, 1))), axis=1) if len(outputs) else known

    def overlapping(self, start: int, end: int) -> list[SequenceImage]:
        return [image for image in self.images if _first_run(image, start, end) is not None]

    def end_with_images(self, start: int, end: int, num_images: int) -> int:
        """Returns where a chunk of [start, end) ends that has at most ``num_images`` images."""
        found = self.overlapping(start, end)
        if len(found) <= num_images:
            return end
        run = _first_run(found[num_images], start, end)
        assert run is not None, "it overlaps"
        return max(start, run.first_token)

    def end_of_whole(self, start: int, end: int, *, may_exceed: bool) -> int:
        """Ends in front of an image seen whole, or behind one that begins it if ``may_exceed``."""
        whole = self.images if self.are_seen_whole else ()
        cut = next((image for image in whole if image.first_token < end < image.end), None)
        if cut is None:
            return end
        if cut.first_token > start:
            return cut.first_token
        return cut.end if may_exceed else start

    def content(self, start: int, end: int) -> tuple[str, ...]:
        """Pad tokens are all alike, so an image's digest tells them apart."""
        return tuple(image.content_id for image in self.overlapping(start, end))


def _first_run(image: SequenceImage, start: int, end: int) -> TokenRun | None:
    return next((run for run in image.runs if run.first_token < end and start < run.end), None)


def _places(images: Ordered[SequenceImage], num_tokens: int, merge: int) -> Ints:
    found = np.empty((3, num_tokens), dtype=np.int64)
    token = place = 0
    for image in images:
        first, last = image.first_token, image.end
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


def prompt_images(command: SubmitSequence, vision: VisionConfig) -> PromptImages:
    return PromptImages(
        command.images,
        len(command.token_ids),
        vision.merge,
        has_places=vision.mrope_section is not None,
        are_seen_whole=vision.is_bidirectional,
    )
