"""How much one gateway takes on at once. Each refusal names its bound. Pure counting."""

from __future__ import annotations

from inference.wire.errors import ServiceUnavailableError

RETRY_AFTER_S = 1.0


class Bounds:
    """Belongs to one event loop."""

    def __init__(self, *, max_open_requests: int, max_open_body_bytes: int) -> None:
        self.num_open_requests = 0
        self.num_body_bytes = 0
        self._max_open_requests = max_open_requests
        self._max_open_body_bytes = max_open_body_bytes

    def open_request(self) -> None:
        """Raises ``ServiceUnavailableError``."""
        if self.num_open_requests >= self._max_open_requests:
            raise ServiceUnavailableError(
                "queue_full",
                f"This gateway has {self._max_open_requests:,} requests open, which is as many as "
                "it takes (HELEXA_MAX_OPEN_REQUESTS).",
                retry_after_s=RETRY_AFTER_S,
            )
        self.num_open_requests += 1

    def take_body(self, num_bytes: int) -> None:
        """Raises ``ServiceUnavailableError``."""
        if self.num_body_bytes + num_bytes > self._max_open_body_bytes:
            raise ServiceUnavailableError(
                "queue_full",
                f"The bodies of the requests that are open here take {self._max_open_body_bytes:,} "
                "bytes together, which is the most (HELEXA_MAX_OPEN_BODY_BYTES).",
                retry_after_s=RETRY_AFTER_S,
            )
        self.num_body_bytes += num_bytes

    def free_body(self, num_bytes: int) -> None:
        self.num_body_bytes -= num_bytes

    def close_request(self, num_body_bytes: int) -> None:
        """``num_body_bytes``: what it took of bodies."""
        self.num_open_requests -= 1
        self.num_body_bytes -= num_body_bytes
