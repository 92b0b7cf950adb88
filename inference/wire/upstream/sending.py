"""What a request for an upstream needs beside what its client asked for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inference.wire.common.parts import ImageFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    model: str
    """The upstream's own name of it."""
    images: Mapping[str, ImageFile] = field(default_factory=dict)
    """The images with their bytes, by digest."""
    max_tokens: int | None = None
    """What bounds each choice; ``None``: nothing does."""
    context_tokens: int | None = None
    """The context that the catalogue states; ``None``: it states none."""
    host: str = ""
    """The upstream's, without a port."""
