"""The callback that receives a load's progress."""

from __future__ import annotations

from collections.abc import Callable

from inference.protocol.load_progress import LoadProgress

OnProgress = Callable[[LoadProgress], None]
