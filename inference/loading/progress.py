"""Who is told how a load goes."""

from __future__ import annotations

from collections.abc import Callable

from inference.protocol.load import LoadProgress

OnProgress = Callable[[LoadProgress], None]
