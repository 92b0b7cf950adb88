"""Images on their way to a model that sees, and how many tokens each becomes.

    body ─▶ ImageRef in a ChatMessage ─▶ Submit          what it is: small, through the inbox
         └▶ bytes ─▶ Redis, under the request's key      beside it, with an expiry
    neuron: both ─▶ SequenceImage ─▶ engine

Sizes are enough to count an image's tokens, so the bytes are not looked at before the engine.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from inference.protocol.image_layout import ImageDivision, ImageLayout

MediaType = Literal["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"]


class ImageRef(msgspec.Struct, frozen=True, kw_only=True):
    """One image of a turn. ``width_px`` and ``height_px`` are as it is shown: the orientation that
    the file's Exif data names is applied, as ``PIL.ImageOps.exif_transpose`` does."""

    digest: str
    """SHA-256 of the file's bytes, in hexadecimal."""
    media_type: MediaType
    width_px: int
    height_px: int
    num_bytes: int
    is_low_detail: bool = False
    """Whether its client wants fewer tokens of it: see ``image_layout``."""


class TokenRun(msgspec.Struct, frozen=True, array_like=True):
    """Pad tokens of one image that follow each other in a prompt."""

    first_token: int
    """The position of the first of them."""
    num_tokens: int

    @property
    def end(self) -> int:
        """The position behind the last of them."""
        return self.first_token + self.num_tokens


class SequenceImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image of a sequence's prompt, whose token ids already hold the pad ids of ``runs``."""

    digest: str
    """The digest as in ``ImageRef``."""
    data: bytes
    """The file, not decoded. The decoder applies its Exif orientation."""
    runs: list[TokenRun]
    """Where the image's tokens are, in order. Between runs stand tokens of text that name the
    part of the image that follows."""
    grid: tuple[int, int, int]
    """The number of tiles, and the height and width of each in patches, before they are merged."""

    @property
    def num_tokens(self) -> int:
        """The number of pad tokens, without text between the runs."""
        return sum(run.num_tokens for run in self.runs)

    @property
    def first_token(self) -> int:
        """The position of the first token."""
        return self.runs[0].first_token

    @property
    def end(self) -> int:
        """The position behind the last token."""
        return self.runs[-1].end

    @property
    def content_id(self) -> str:
        """What its rows follow from: one file may be read in two sizes."""
        return f"{self.digest} {'x'.join(map(str, self.grid))}"


class VisionInput(msgspec.Struct, frozen=True, kw_only=True):
    """How a loaded model takes images: what rendering and counting need."""

    pad_token_id: int
    """What its prompt holds for each token of an image."""
    patch_px: int
    merge: int
    """The number of patches each way that become one token."""
    min_pixels: int
    max_pixels: int
    """Smaller images are enlarged to the one, larger ones reduced to the other."""
    image_px: int = 0
    """The side of the square that every image becomes, or each of its tiles; 0: sizes vary."""
    placeholder: str = ""
    """What the template writes for an image; empty: the pad, once."""
    written: str = ""
    """What replaces a placeholder before the prompt is tokenized: the pad, once, among others. Of
    an image that is divided, ``part``, ``row_break`` and ``parts_end`` do."""
    division: ImageDivision = "none"
    part: str = ""
    """The text of one part of a divided image: the pad, once, among others, and ``{row}`` and
    ``{column}`` for its place, counted from 1."""
    row_break: str = ""
    """The text between two rows of parts."""
    parts_end: str = ""
    """The text behind the last row: of tiles, that of the whole image, with the pad once."""

    def text_of(self, layout: ImageLayout) -> str:
        """What replaces the placeholder of one image, with the pad once for each of its runs."""
        if not layout.rows:
            return self.written
        columns = range(1, layout.columns + 1)
        rows = (
            "".join(self.part.format(row=row, column=column) for column in columns)
            for row in range(1, layout.rows + 1)
        )
        return self.row_break.join(rows) + self.parts_end

    def most_text_bytes(self, layout: ImageLayout) -> int:
        """Not less than the bytes of ``text_of`` a divided image; 0 of any other. Builds no
        text."""
        if not layout.rows:
            return 0
        a_part = len(self.part.encode()) + len(self.row_break.encode())
        return layout.rows * layout.columns * a_part + len(self.parts_end.encode())
