"""Rows of images by content and size: the tower runs once for an image, and again where its rows
had to make room for others' meanwhile."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from inference.engine.faults.kinds import InvalidImageFault
from inference.models.errors import InvalidImageError
from inference.models.vision.tower import ImageEmbeddings
from inference.models.vision.towers import AnyTower
from inference.protocol.images import SequenceImage


class ImageProcessor(Protocol):
    def patches(self, data: bytes, grid: tuple[int, int, int]) -> npt.NDArray[np.float32]:
        """An image file's patches (num_patches, patch_features), in the order in which they are
        merged. ``grid``: what the prompt was counted by. Raises ``InvalidImageError``."""
        ...


class ImageRows:
    """The latest used are kept, up to ``kept_bytes``. For the engine's thread."""

    def __init__(self, tower: AnyTower, processor: ImageProcessor, kept_bytes: int) -> None:
        self._tower = tower
        self._processor = processor
        self._kept_bytes = kept_bytes
        self._num_bytes = 0
        self._rows: OrderedDict[str, ImageEmbeddings] = OrderedDict()
        self.num_runs = 0
        """How often the tower has run."""

    def of(self, image: SequenceImage) -> ImageEmbeddings:
        """All of the image's. Raises ``InvalidImageFault``."""
        if (known := self._rows.get(image.content_id)) is not None:
            self._rows.move_to_end(image.content_id)
            return known
        try:
            patches = self._processor.patches(image.data, image.grid)
        except InvalidImageError as error:
            raise InvalidImageFault(str(error)) from None
        rows = self._tower(torch.from_numpy(patches), image.grid)
        self.num_runs += 1
        self._keep(image.content_id, rows)
        return rows

    def _keep(self, content_id: str, rows: ImageEmbeddings) -> None:
        if rows.num_bytes > self._kept_bytes:
            return
        self._rows[content_id] = rows
        self._num_bytes += rows.num_bytes
        while self._num_bytes > self._kept_bytes:
            _, oldest = self._rows.popitem(last=False)
            self._num_bytes -= oldest.num_bytes
