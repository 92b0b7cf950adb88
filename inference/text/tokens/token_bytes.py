"""Which bytes each token id stands for, read from the ``decoder`` of a tokenizer.json.

Two families cover the decoders of models that generate: byte-level BPE, where every character of a
piece is one byte, and sentencepiece, where ``▁`` is a space and ``<0x0A>`` a byte. Both make
decoding a plain concatenation, except that sentencepiece drops the space it put before the first
word. A third, the WordPiece of encoders, marks what continues a word; its tidying of spaces before
punctuation is left out, as an encoder's tokens are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from inference.text.errors import TokenizerFilesError

BYTE_FALLBACK_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class LeadingSpace(Enum):
    """How decoding treats spaces at the very start of a text."""

    KEEP = "keep"
    DROP_ONE = "drop one"
    DROP_IN_FIRST_TOKEN = "drop in first token"


@dataclass(frozen=True, slots=True)
class TokenBytes:
    by_id: list[bytes]
    """Index is the token id; ids that the tokenizer does not know hold ``b""``."""
    leading_space: LeadingSpace


def token_bytes(decoder: Mapping[str, Any] | None, pieces: Mapping[str, int]) -> TokenBytes:
    """``pieces`` is the whole vocabulary with added tokens. Raises ``TokenizerFilesError`` for a
    decoder of another family."""
    if decoder is None:
        raise TokenizerFilesError("tokenizer.json has no decoder")
    steps = list(_steps(decoder))
    rule = _rule(steps)
    by_id = [b""] * (max(pieces.values(), default=-1) + 1)
    for piece, token_id in pieces.items():
        by_id[token_id] = rule(piece)
    return TokenBytes(by_id, _leading_space(steps))


def no_bytes(pieces: Mapping[str, int]) -> TokenBytes:
    """The table of a vocabulary that nobody decodes with."""
    return TokenBytes([b""] * (max(pieces.values(), default=-1) + 1), LeadingSpace.KEEP)


def _rule(steps: list[Mapping[str, Any]]) -> Callable[[str], bytes]:
    match steps:
        case [{"type": "WordPiece", "prefix": str(prefix)}]:
            return partial(_word_piece, prefix=prefix)
        case _ if _is_byte_level(steps):
            return _byte_level_piece
    return _sentencepiece_rule(steps)


def _is_byte_level(steps: list[Mapping[str, Any]]) -> bool:
    return [step["type"] for step in steps if step["type"] != "Fuse"] == ["ByteLevel"]


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters are their own byte, the other bytes follow in
    order from U+0100."""
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
    others = [byte for byte in range(256) if byte not in own]
    shifted = {chr(256 + position): byte for position, byte in enumerate(others)}
    return {chr(byte): byte for byte in own} | shifted


BYTE_OF_CHARACTER = _byte_of_character()


def _byte_level_piece(piece: str) -> bytes:
    """An added token may hold characters outside the alphabet; it is then ordinary text."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in piece])
    except KeyError:
        return piece.encode()


def _word_piece(piece: str, *, prefix: str) -> bytes:
    """``##ing`` continues a word, other pieces begin one."""
    if piece.startswith(prefix):
        return piece.removeprefix(prefix).encode()
    return f" {piece}".encode()


def _sentencepiece_rule(steps: list[Mapping[str, Any]]) -> Callable[[str], bytes]:
    replacements = []
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replacements.append((old, new))
            case {"type": "Metaspace", "replacement": str(old)}:
                replacements.append((old, " "))
            case {"type": "ByteFallback" | "Fuse"} | {"type": "Strip", "content": " ", "stop": 0}:
                pass
            case _:
                raise TokenizerFilesError(
                    f"tokenizer.json has a decoder step {dict(step)!r}; known are ByteLevel, "
                    "Replace, Metaspace, ByteFallback, Fuse and Strip of leading spaces"
                )
    if not replacements:
        raise TokenizerFilesError("tokenizer.json has a decoder that never writes a space")
    has_byte_pieces = any(step["type"] == "ByteFallback" for step in steps)

    def rule(piece: str) -> bytes:
        if has_byte_pieces and (match := BYTE_FALLBACK_PIECE.fullmatch(piece)):
            return bytes([int(match.group(1), 16)])
        for old, new in replacements:
            piece = piece.replace(old, new)
        return piece.encode()

    return rule


def _leading_space(steps: list[Mapping[str, Any]]) -> LeadingSpace:
    for step in steps:
        match step:
            case {"type": "Strip", "start": 1} | {"type": "WordPiece"}:
                return LeadingSpace.DROP_ONE
            case {"type": "Strip", "start": int(start)} if start > 1:
                raise TokenizerFilesError(
                    f"tokenizer.json strips {start} leading spaces; 1 is known"
                )
            case {"type": "Metaspace", "prepend_scheme": "never"}:
                return LeadingSpace.KEEP
            case {"type": "Metaspace"}:
                return LeadingSpace.DROP_IN_FIRST_TOKEN
    return LeadingSpace.KEEP


def num_bytes(text: str) -> int:
    """Returns the text's bytes as UTF-8; what has no bytes counts as one."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _steps(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if part.get("type") != "Sequence":
        yield part
        return
    for step in part.get("decoders") or []:
        yield from _steps(step)
