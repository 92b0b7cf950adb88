"""What a gateway seals of each request, for the neuron that it sends it to.

    gateway ─▶ Submit(receipt) ─▶ neuron ─▶ UsageReport(receipt) ─▶ control: settled within it

A neuron's usage report is settled where the request's gateway has died. Neurons are not trusted
with money: who pays, for which model, at which prices and for how many tokens at most is read from
the receipt alone, which only gateways and controls can make.

A sealed receipt is the receipt as msgpack behind 16 bytes of HMAC-SHA256 over it.
"""

from __future__ import annotations

import hmac

import msgspec

from metering.prices import Prices

PURPOSE = b"helexa receipt 3"
NUM_SEAL_BYTES = 16
MAX_RECEIPT_BYTES = 4096


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    """The request's own, whichever attempt this is: it is settled once."""
    gateway_id: str
    neuron: str
    sealed_unix_s: float
    account: str
    key: str
    """The public prefix of the API key; empty where there was none."""
    model: str
    """Its catalogue name."""
    endpoint: str
    """The path that the client called."""
    client: str
    """Its family, as the ledger has it."""
    input_micro_usd: int
    cached_input_micro_usd: int
    output_micro_usd: int
    """Prices per million tokens, as the request was promised them."""
    max_prompt_tokens: int
    max_output_tokens: int
    """Over all prompts and all choices."""

    @property
    def prices(self) -> Prices:
        return Prices(
            input_micro_usd=self.input_micro_usd,
            cached_input_micro_usd=self.cached_input_micro_usd,
            output_micro_usd=self.output_micro_usd,
        )


class ReceiptError(Exception):
    """No gateway of this fleet made it, or it was made for another neuron."""


class Receipts:
    """All processes of a fleet that seal share ``secret_key``, Django's."""

    def __init__(self, secret_key: str) -> None:
        self._secret = hmac.digest(secret_key.encode(), PURPOSE, "sha256")

    def seal(self, receipt: Receipt) -> bytes:
        data = _encode(receipt)
        return self._seal_of(data) + data

    def open(self, sealed: bytes, *, neuron: str) -> Receipt:
        """The receipt that ``neuron`` was given. Raises ``ReceiptError``."""
        if len(sealed) > MAX_RECEIPT_BYTES:
            raise ReceiptError("its receipt is too long")
        seal, data = sealed[:NUM_SEAL_BYTES], sealed[NUM_SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._seal_of(data)):
            raise ReceiptError("its receipt is not a gateway's")
        receipt = _decode(data)
        if receipt.neuron != neuron:
            raise ReceiptError("its receipt is another neuron's")
        return receipt

    def _seal_of(self, data: bytes) -> bytes:
        return hmac.digest(self._secret, data, "sha256")[:NUM_SEAL_BYTES]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Receipt).decode
