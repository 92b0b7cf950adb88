"""What a neuron reports of a captured request, as ``Traced`` before its end: its rendered prompt,
what its parsers decided, and the raw text of its answer.

Bounded while it is collected and once more as a whole. Masked like bodies in a log.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.neuron.requests.request_details import RequestDetails, written_out
from inference.protocol.events import MAX_TRACE_BYTES, Traced
from inference.text.tokens.tokenizer import Tokenizer

MAX_TEXT_CHARACTERS = MAX_TRACE_BYTES // 4
"""The longest text of a trace."""
MAX_OUTPUT_TOKENS = 16_384
"""The most tokens of all choices together that are kept as raw text."""
CUT = "\n[the rest is left out]"


class RequestTrace:
    """One request's trace, written by the thread that prepares the request and then by the one that
    applies its outputs."""

    def __init__(self, request_id: str, tokenizer: Tokenizer) -> None:
        self._request_id = request_id
        self._tokenizer = tokenizer
        self._lines: list[str] = []
        self._num_characters = 0
        self._outputs: dict[int, list[int]] = {}
        self._num_output_tokens = 0
        self.details = RequestDetails(
            self._write,
            shows_bodies=True,
            max_characters=MAX_TEXT_CHARACTERS,
            take_tokens=self._take_tokens,
        )

    def event(self) -> Traced:
        for index, token_ids in self._outputs.items():
            text = self.details.described(written_out(token_ids, self._tokenizer))
            self._write(index, f"raw text: tokens={len(token_ids)} {text}")
        return Traced(request_id=self._request_id, text=_bounded("\n".join(self._lines)))

    def _write(self, index: int | None, words: str) -> None:
        if self._num_characters > MAX_TRACE_BYTES:
            return
        line = words if index is None else f"choice {index}: {words}"
        self._num_characters += len(line)
        self._lines.append(line)

    def _take_tokens(self, index: int, token_ids: Sequence[int]) -> None:
        room = MAX_OUTPUT_TOKENS - self._num_output_tokens
        taken = token_ids[:room]
        self._num_output_tokens += len(taken)
        self._outputs.setdefault(index, []).extend(taken)


def _bounded(text: str) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MAX_TRACE_BYTES:
        return encoded.decode()
    return encoded[: MAX_TRACE_BYTES - len(CUT)].decode("utf-8", "ignore") + CUT
