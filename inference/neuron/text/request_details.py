"""Lines about a request's rendered prompt and the parsed parts of its answer, for the debug log and
for the trace of a captured request.

Texts are in the log only of accounts that ``HELEXA_LOG_BODIES`` names, masked and bounded
(``inference.redaction``); of others their lengths and digests are, and names of tools only where
the request offers them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from itertools import groupby

from inference.neuron.text.prompts import Prepared
from inference.protocol.events import MAX_TRACE_BYTES, Traced
from inference.redaction import MAX_BODY_CHARACTERS, Redactor, digest_of, masked_body, secrets_of
from inference.text.choice_text import Piece, ThoughtPart
from inference.text.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import Decision

logger = logging.getLogger(__name__)


MAX_NAME_CHARACTERS = 64
LEAST_RUN = 8
"""From this length, a run of one special token (an image's places) is written as ``[xN]``."""


class RequestDetails:
    """Used by the thread that prepares the request, then by the one that applies its outputs."""

    def __init__(
        self, request_id: str, *, shows_bodies: bool, max_characters: int = MAX_BODY_CHARACTERS
    ) -> None:
        self.request_id = request_id
        self._shows_bodies = shows_bodies
        self._max_characters = max_characters
        self._redact = Redactor(secrets_of(os.environ) if shows_bodies else frozenset())
        self._tool_names: frozenset[str] = frozenset()

    def write(self, index: int | None, words: str) -> None:
        request_id = self.request_id
        logger.debug("%s %s", request_id if index is None else f"{request_id}/{index}", words)

    def prompts(self, prepared: Prepared, tokenizer: Tokenizer, tool_format: str | None) -> None:
        self._tool_names = frozenset(tool.name for tool in prepared.tools)
        for index, token_ids in enumerate(prepared.prompts):
            thinking = "open" if prepared.thinking.is_open else "closed"
            self.write(
                None,
                f"prompt {index}: tokens={len(token_ids)} lost_turns={prepared.num_lost_turns} "
                f"thinking={thinking} tools={len(prepared.tools)} tool_format={tool_format or '-'} "
                f"{self.described(written_out(token_ids, tokenizer))}",
            )

    def output(self, index: int, token_ids: Sequence[int], pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if not isinstance(piece, ThoughtPart):
                continue
            if piece.opens is not None:
                self.write(index, f"reasoning opens by {piece.opens!r}")
            if piece.closes is not None:
                self.write(index, f"reasoning closes by {piece.closes!r}")
            if piece.missing_close is not None:
                self.write(
                    index, f"reasoning ends with the answer, without {piece.missing_close!r}"
                )

    def decision(self, index: int, decision: Decision) -> None:
        calls = "".join(
            f" {self._named(call.name)}({self.described(call.arguments)})"
            for call in decision.calls
        )
        refusal = f" text because {decision.refusal}" if decision.refusal else ""
        block = self.described(decision.block)
        streamed = " and streamed ones" if decision.has_streamed else ""
        self.write(
            index, f"tool calls={len(decision.calls)}{streamed}{calls}{refusal} block: {block}"
        )

    def described(self, text: str) -> str:
        words = f"characters={len(text)} digest={digest_of(text)}"
        if not self._shows_bodies:
            return words
        return f"{words} text={masked_body(text, self._redact, self._max_characters)}"

    def _named(self, name: str) -> str:
        is_shown = name in self._tool_names or self._shows_bodies
        return name[:MAX_NAME_CHARACTERS] if is_shown else "?"


def written_out(token_ids: Sequence[int], tokenizer: Tokenizer) -> str:
    pieces: list[bytes] = []
    for token_id, run in groupby(token_ids):
        number = len(list(run))
        piece = tokenizer.bytes_of(token_id)
        is_collapsed = number >= LEAST_RUN and token_id in tokenizer.special_token_ids
        pieces.append(piece + f"[x{number}]".encode() if is_collapsed else piece * number)
    return b"".join(pieces).decode("utf-8", errors="replace")


MAX_TEXT_CHARACTERS = MAX_TRACE_BYTES // 4
MAX_OUTPUT_TOKENS = 16_384
CUT = "\n[the rest is left out]"


class RequestTrace(RequestDetails):
    """Bounded while it is collected and once more as a whole."""

    def __init__(self, request_id: str, tokenizer: Tokenizer) -> None:
        super().__init__(request_id, shows_bodies=True, max_characters=MAX_TEXT_CHARACTERS)
        self._tokenizer = tokenizer
        self._lines: list[str] = []
        self._num_characters = 0
        self._outputs: dict[int, list[int]] = {}
        self._num_output_tokens = 0

    def event(self) -> Traced:
        for index, token_ids in self._outputs.items():
            text = self.described(written_out(token_ids, self._tokenizer))
            self.write(index, f"raw text: tokens={len(token_ids)} {text}")
        return Traced(request_id=self.request_id, text=_bounded("\n".join(self._lines)))

    def write(self, index: int | None, words: str) -> None:
        if self._num_characters > MAX_TRACE_BYTES:
            return
        line = words if index is None else f"choice {index}: {words}"
        self._num_characters += len(line)
        self._lines.append(line)

    def output(self, index: int, token_ids: Sequence[int], pieces: Sequence[Piece]) -> None:
        super().output(index, token_ids, pieces)
        taken = token_ids[: MAX_OUTPUT_TOKENS - self._num_output_tokens]
        self._num_output_tokens += len(taken)
        self._outputs.setdefault(index, []).extend(taken)


def _bounded(text: str) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MAX_TRACE_BYTES:
        return encoded.decode()
    return encoded[: MAX_TRACE_BYTES - len(CUT)].decode("utf-8", "ignore") + CUT
