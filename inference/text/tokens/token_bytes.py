"""Which bytes each token id stands for, read from the ``decoder`` of a tokenizer.json, and how many
one token has at most: a text that cannot fit is not tokenized.

Two families cover the decoders of models that generate: byte-level BPE, where every character of a
piece is one byte, and sentencepiece, where ``▁`` is a space and ``<0x0A>`` a byte. Both make
decoding a plain concatenation, except that sentencepiece drops the space it put before the first
word. A third, the WordPiece of encoders, marks what continues a word; its tidying of spaces before
punctuation is left out, as an encoder's tokens are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    steps = list(_steps(decoder, "decoders"))
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


NFC_SHRINKS = 3
"""Composing makes UTF-8 at most so many times shorter: three Hangul letters become one syllable."""
KEEPING = {"NFC", "Prepend", "Replace", "ByteLevel", "Digits", "Metaspace", "Split"}
"""Normalizers and pre-tokenizers that keep the whole text."""


def most_bytes_per_token(definition: Mapping[str, Any], by_id: Sequence[bytes]) -> int | None:
    """``definition`` is tokenizer.json, ``by_id`` what its tokens stand for. ``None``: no such
    number is known.

    Byte-level BPE, and sentencepiece's BPE with byte fallback, cut a text into tokens and drop none
    of it. So no token stands for more bytes than the longest of the vocabulary. Other tokenizers
    may drop text or fold it.
    """
    model = definition.get("model") or {}
    steps = [
        *_steps(definition.get("normalizer"), "normalizers"),
        *_steps(definition.get("pre_tokenizer"), "pretokenizers"),
    ]
    types = {step.get("type") for step in steps}
    is_kept = types <= KEEPING and all(step.get("behavior") != "Removed" for step in steps)
    added = definition.get("added_tokens") or []
    if any(token.get("lstrip") or token.get("rstrip") for token in added):
        return None  # they take the blanks beside them
    if model.get("type") != "BPE" or not is_kept:
        return None
    if not (model.get("byte_fallback") or "ByteLevel" in types):
        return None  # what has no token is dropped, or merged into one
    return max(map(len, by_id), default=0) * (NFC_SHRINKS if "NFC" in types else 1) or None


def num_bytes(text: str) -> int:
    """Returns the text's bytes as UTF-8; what has no bytes counts as one."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _steps(part: Mapping[str, Any] | None, plural: str) -> Iterator[Mapping[str, Any]]:
    if part is None:
        return
    if part.get("type") != "Sequence":
        yield part
        return
    for step in part.get(plural) or []:
        yield from _steps(step, plural)
