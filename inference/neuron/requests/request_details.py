"""Logs a request at debug level: its rendered prompt, and the parsed parts of its answer. One line
each, by the request's id.

    prompt           what the model gets, special tokens written out
    reasoning        a block of thinking that opens and closes, and by which marker
    tool calls       each block that a parser took for calls: its calls, or why it is text

Texts are in it only of accounts that ``HELEXA_LOG_BODIES`` names, masked and bounded
(``inference.logs.bodies``); of others their lengths and digests are, and names of tools only where
the request offers them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from itertools import groupby

from inference.logs.bodies import digest_of, masked_body
from inference.logs.redaction import Redactor, secrets_of
from inference.neuron.requests.prompts.prompts import Prepared
from inference.protocol.generation import Submit
from inference.settings.accounts import LoggedBodies
from inference.text.answers.choice_text import Piece, ThoughtPart
from inference.text.tokens.tokenizer import Tokenizer
from inference.text.tool_calls.call_parser import Decision

logger = logging.getLogger(__name__)

MAX_NAME_CHARACTERS = 64
LEAST_RUN = 8
"""So many of one special token in a row (an image's places) are written as one and their number."""


class RequestDetails:
    """The details of one request, for the thread that prepares it and then for the one that applies
    its outputs."""

    def __init__(self, request_id: str, *, shows_bodies: bool) -> None:
        self._request_id = request_id
        self._shows_bodies = shows_bodies
        self._redact = Redactor(secrets_of(os.environ) if shows_bodies else frozenset())

    def prompts(self, prepared: Prepared, tokenizer: Tokenizer, tool_format: str | None) -> None:
        for index, token_ids in enumerate(prepared.prompts):
            text = _written_out(token_ids, tokenizer)
            logger.debug(
                "%s prompt %d: tokens=%d lost_turns=%d thinking=%s tools=%d tool_format=%s %s",
                self._request_id,
                index,
                len(token_ids),
                prepared.num_lost_turns,
                "open" if prepared.thinking.is_open else "closed",
                len(prepared.tools),
                tool_format or "-",
                self.described(text),
            )

    def choice(self, index: int, tool_names: Collection[str]) -> ChoiceDetails:
        return ChoiceDetails(self, index, frozenset(tool_names))

    def log(self, index: int, words: str) -> None:
        logger.debug("%s/%d %s", self._request_id, index, words)

    def described(self, text: str) -> str:
        words = f"characters={len(text)} digest={digest_of(text)}"
        return f"{words} text={masked_body(text, self._redact)}" if self._shows_bodies else words

    def named(self, name: str, known: Collection[str]) -> str:
        """A name that the model made up may be any text."""
        return name[:MAX_NAME_CHARACTERS] if name in known or self._shows_bodies else "?"


class ChoiceDetails:
    """Of one choice's answer."""

    def __init__(self, request: RequestDetails, index: int, tool_names: frozenset[str]) -> None:
        self._request = request
        self._index = index
        self._tool_names = tool_names

    def pieces(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if not isinstance(piece, ThoughtPart):
                continue
            if piece.opens is not None:
                self._log(f"reasoning opens by {piece.opens!r}")
            if piece.closes is not None:
                self._log(f"reasoning closes by {piece.closes!r}")
            if piece.missing_close is not None:
                self._log(f"reasoning ends with the answer, without {piece.missing_close!r}")

    def decision(self, decision: Decision) -> None:
        calls = "".join(
            f" {self._request.named(call.name, self._tool_names)}"
            f"({self._request.described(call.arguments)})"
            for call in decision.calls
        )
        refusal = f" text because {decision.refusal}" if decision.refusal else ""
        block = self._request.described(decision.block)
        streamed = " and streamed ones" if decision.has_streamed else ""
        self._log(f"tool calls={len(decision.calls)}{streamed}{calls}{refusal} block: {block}")

    def _log(self, words: str) -> None:
        self._request.log(self._index, words)


def details_of(submit: Submit, bodies: LoggedBodies) -> RequestDetails | None:
    """``None`` where this logger does not log at debug level."""
    if not logger.isEnabledFor(logging.DEBUG):
        return None
    return RequestDetails(submit.request_id, shows_bodies=bodies.include(submit.account))


def _written_out(token_ids: Sequence[int], tokenizer: Tokenizer) -> str:
    pieces: list[bytes] = []
    for token_id, run in groupby(token_ids):
        number = len(list(run))
        piece = tokenizer.bytes_of(token_id)
        is_collapsed = number >= LEAST_RUN and token_id in tokenizer.special_token_ids
        pieces.append(piece + f"[x{number}]".encode() if is_collapsed else piece * number)
    return b"".join(pieces).decode("utf-8", errors="replace")
