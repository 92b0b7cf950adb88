"""The least number of tokens of a text, from its size: a text that cannot fit is not tokenized.

Byte-level BPE, and sentencepiece's BPE with byte fallback, cut a text into tokens and drop none of
it. So no token stands for more bytes than the longest of the vocabulary, and a text has at least
its bytes divided by that many tokens. No bound is given for tokenizers that may drop text or fold
it: those with other models, normalizers that strip, tokens that take the blanks beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NFC_SHRINKS = 3
"""Composing makes UTF-8 at most so many times shorter: three Hangul letters become one syllable."""


def most_bytes_per_token(definition: Mapping[str, Any], by_id: Sequence[bytes]) -> int | None:
    """``definition`` is tokenizer.json, ``by_id`` what its tokens stand for. ``None``: no such
    number is known."""
    if not _covers_every_byte(definition.get("model") or {}, definition):
        return None
    if any(token.get("lstrip") or token.get("rstrip") for token in _added(definition)):
        return None
    shrinks = 1
    for step in _steps(definition.get("normalizer"), "normalizers"):
        match step:
            case {"type": "NFC"}:
                shrinks = NFC_SHRINKS
            case {"type": "Prepend"}:
                pass
            case {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}:
                pass
            case _:
                return None
    for step in _steps(definition.get("pre_tokenizer"), "pretokenizers"):
        match step:
            case {"type": "ByteLevel" | "Digits" | "Metaspace"}:
                pass
            case {"type": "Split", "behavior": str(behavior)} if behavior != "Removed":
                pass
            case _:
                return None
    return max(map(len, by_id), default=0) * shrinks or None


def num_bytes(text: str) -> int:
    """Returns the text's bytes as UTF-8; what has no bytes counts as one."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _covers_every_byte(model: Mapping[str, Any], definition: Mapping[str, Any]) -> bool:
    """Whether every byte has a token. Otherwise unknown text is dropped, or merged into one
    token."""
    if model.get("type") != "BPE" or model.get("continuing_subword_prefix"):
        return False
    if model.get("end_of_word_suffix"):
        return False
    vocabulary = model.get("vocab") or {}
    if model.get("byte_fallback"):
        return all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    steps = [
        *_steps(definition.get("pre_tokenizer"), "pretokenizers"),
        *_steps(definition.get("normalizer"), "normalizers"),
    ]
    is_byte_level = any(step.get("type") == "ByteLevel" for step in steps)
    return is_byte_level and sum(len(piece) == 1 for piece in vocabulary) >= 256


def _added(definition: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return definition.get("added_tokens") or []


def _steps(part: Mapping[str, Any] | None, plural: str) -> Iterator[Mapping[str, Any]]:
    if part is None:
        return
    if part.get("type") != "Sequence":
        yield part
        return
    for step in part.get(plural) or []:
        yield from _steps(step, plural)
