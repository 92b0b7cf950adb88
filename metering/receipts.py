"""A mark on each request that only a gateway can make, for the neuron that it is sent to.

    gateway ─▶ Submit(receipt) ─▶ neuron ─▶ RequestAccount(receipt) ─▶ control: is it that neuron's?

A neuron's account of a request is settled where its gateway has died. An invited host may write
accounts, and could make up one of a request that another neuron serves: it has no receipt for that.
"""

from __future__ import annotations

import hmac

PURPOSE = b"helexa receipt"
NUM_HEX = 32


class Receipts:
    """All processes of a fleet that sign share ``secret_key``, Django's."""

    def __init__(self, secret_key: str) -> None:
        self._secret = hmac.digest(secret_key.encode(), PURPOSE, "sha256")

    def of(self, request_id: str, neuron: str) -> str:
        """``neuron`` is a name, and holds no line feed."""
        signed = f"{neuron}\n{request_id}".encode()
        return hmac.digest(self._secret, signed, "sha256").hex()[:NUM_HEX]

    def is_good(self, receipt: str, request_id: str, neuron: str) -> bool:
        return hmac.compare_digest(receipt.encode(), self.of(request_id, neuron).encode())
