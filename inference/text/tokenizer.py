"""Text to token ids and back to bytes, from the files that a load left in a tokenizer directory.

Each token stands for bytes, by the ``decoder`` of tokenizer.json: byte-level BPE, where every
character of a piece is one byte, and sentencepiece, where ``▁`` is a space and ``<0x0A>`` a byte.
Both make decoding a plain concatenation, except that sentencepiece drops the space it put before
the first word. WordPiece is for encoders, whose tokens are never shown.

The pieces joined equal the tokenizer's own decode of all ids with special tokens skipped, but keep
valid characters beside bytes of a sentencepiece model that are no character.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers

from inference.garbage import release_freed_memory
from inference.text.errors import TokenizerFilesError, TooManyTokensError

NAMED_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)

MAX_BYTES_PER_TOKEN = 512
"""Longer than any token of a published vocabulary; the longest are 128 spaces."""


class LeadingSpace(Enum):
    """How decoding treats spaces at the start of a text."""

    KEEP = "keep"
    DROP_ONE = "drop one"
    DROP_IN_FIRST_TOKEN = "drop in first token"


class Tokenizer:
    """Immutable after construction; any thread may use it."""

    def __init__(self, definition: str, config: dict[str, Any], *, is_decoded: bool = True) -> None:
        """``definition`` is the text of tokenizer.json, ``config`` tokenizer_config.json.
        ``is_decoded``: ``False`` for an encoder's. Raises ``TokenizerFilesError``."""
        try:
            self._backend = tokenizers.Tokenizer.from_str(definition)
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            raise TokenizerFilesError(f"tokenizer.json cannot be read: {error}") from None
        # Limits belong to the request: nothing is cut here.
        self._backend.no_truncation()
        self._backend.no_padding()
        self.special_tokens = _special_tokens(config)
        """Texts of bos_token, eos_token …, for chat templates."""
        parsed = json.loads(definition)
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        try:
            rule, self.leading_space = _decoding(parsed.get("decoder"))
        except TokenizerFilesError:
            if is_decoded:
                raise
            rule, self.leading_space = (lambda _: b""), LeadingSpace.KEEP
        self._bytes_by_id = [b""] * (max(vocabulary.values(), default=-1) + 1)
        for piece, token_id in vocabulary.items():
            self._bytes_by_id[token_id] = rule(piece)
        # Other models fold an unknown word to one token, however long.
        self._is_bounded = (parsed.get("model") or {}).get("type") == "BPE"
        self.special_token_ids = frozenset(
            token_id
            for token_id, token in self._backend.get_added_tokens_decoder().items()
            if token.special
        )
        self._prefix_ids, self._suffix_ids = self._surrounding_ids(config)

    @classmethod
    def load(cls, directory: Path, *, is_decoded: bool = True) -> Tokenizer:
        """Raises ``TokenizerFilesError``."""
        definition = directory / "tokenizer.json"
        if not definition.is_file():
            raise TokenizerFilesError(f"{definition} is missing")
        special_tokens = read_json_object(directory / "special_tokens_map.json")
        config = read_json_object(directory / "tokenizer_config.json")
        text = definition.read_text(encoding="utf-8")
        tokenizer = cls(text, special_tokens | config, is_decoded=is_decoded)
        del text
        release_freed_memory()
        return tokenizer

    @property
    def vocab_size(self) -> int:
        return len(self._bytes_by_id)

    def encode(
        self, text: str, *, add_special_tokens: bool, max_tokens: int | None = None
    ) -> list[int]:
        """Special tokens written in ``text`` become their ids. ``add_special_tokens`` adds the
        model's bos (and eos, for the few models that want it). Raises ``TooManyTokensError`` for
        more than ``max_tokens``; a text that cannot fit by its size alone is not tokenized."""
        if max_tokens is not None and self._is_bounded:
            least_tokens = -(-num_bytes(text) // MAX_BYTES_PER_TOKEN)
            if least_tokens > max_tokens:
                raise TooManyTokensError(least_tokens, is_least=True)
        # The batch call, because it lets other threads run while it works; encode() does not, and
        # a megabyte takes it a second.
        (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        num_tokens = len(encoded)
        if add_special_tokens:
            num_tokens += len(self._prefix_ids) + len(self._suffix_ids)
        # Before the ids are made into Python's numbers, for which all other threads wait.
        if max_tokens is not None and num_tokens > max_tokens:
            raise TooManyTokensError(num_tokens)
        token_ids: list[int] = encoded.ids
        if add_special_tokens:
            return [*self._prefix_ids, *token_ids, *self._suffix_ids]
        return token_ids

    def encode_start(self, text: str, max_tokens: int) -> list[int]:
        room = max(0, max_tokens - len(self._prefix_ids) - len(self._suffix_ids))
        if self._is_bounded:
            text = text[: (room + 1) * MAX_BYTES_PER_TOKEN]
        (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return [*self._prefix_ids, *encoded.ids[:room], *self._suffix_ids]

    def encode_pair(self, pair: tuple[str, str], *, max_tokens: int) -> list[int]:
        """Raises ``TooManyTokensError``."""
        (encoded,) = self._backend.encode_batch_fast([pair], add_special_tokens=True)
        if len(encoded) > max_tokens:
            raise TooManyTokensError(len(encoded))
        token_ids: list[int] = encoded.ids
        return token_ids

    def cut(self, text: str, max_tokens: int) -> str:
        encoded = self._backend.encode(text, add_special_tokens=False)
        if len(encoded) <= max_tokens:
            return text
        return text[: encoded.offsets[max_tokens - 1][1]]

    def single_token_id(self, text: str) -> int | None:
        token_ids = self.encode(text, add_special_tokens=False)
        is_exact = len(token_ids) == 1 and self.bytes_of(token_ids[0]) == text.encode()
        return token_ids[0] if is_exact else None

    def bytes_of(self, token_id: int) -> bytes:
        """May be part of a character. Empty for ids past the vocabulary (padding rows)."""
        return self._bytes_by_id[token_id] if token_id < len(self._bytes_by_id) else b""

    def _surrounding_ids(self, config: dict[str, Any]) -> tuple[list[int], list[int]]:
        """add_bos_token and add_eos_token overrule tokenizer.json."""
        prefix, suffix = self._post_processor_ids()
        for side, flag, name in (
            (prefix, "add_bos_token", "bos_token"),
            (suffix, "add_eos_token", "eos_token"),
        ):
            if flag in config and config[flag] is not None:
                side[:] = [self._special_id(name)] if config[flag] else []
        return prefix, suffix

    def _post_processor_ids(self) -> tuple[list[int], list[int]]:
        plain = self._backend.encode("a", add_special_tokens=False).ids
        surrounded = self._backend.encode("a", add_special_tokens=True).ids
        for start in range(len(surrounded) - len(plain) + 1):
            if surrounded[start : start + len(plain)] == plain:
                return surrounded[:start], surrounded[start + len(plain) :]
        raise TokenizerFilesError("tokenizer.json has a post-processor that rewrites the text")

    def _special_id(self, name: str) -> int:
        text = self.special_tokens.get(name)
        token_id = None if text is None else self._backend.token_to_id(text)
        if token_id is None:
            raise TokenizerFilesError(f"tokenizer_config.json adds a {name} and names none")
        return int(token_id)


def read_json_object(path: Path) -> dict[str, Any]:
    """An absent file is an empty object. Raises ``TokenizerFilesError`` for a broken one."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerFilesError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise TokenizerFilesError(f"{path} does not hold a JSON object")
    return value


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    texts = {}
    for name in NAMED_SPECIAL_TOKENS:
        match config.get(name):
            case str(text) | {"content": str(text)}:
                texts[name] = text
    return texts


_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Gives the text of a sequence as its ids come, without splitting a character."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        continues_text: bool = False,
        shown_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        """``continues_text``: the space with which a sentencepiece model starts a word belongs to
        the text. ``shown_token_ids``: special tokens that are written out all the same."""
        self._tokenizer = tokenizer
        special = tokenizer.special_token_ids
        self._hidden_token_ids = special - shown_token_ids if shown_token_ids else special
        self._decoder = _Utf8Decoder(errors="replace")
        self._leading_space = LeadingSpace.KEEP if continues_text else tokenizer.leading_space

    def feed(self, token_ids: Iterable[int]) -> str:
        return self._decoder.decode(b"".join(map(self._bytes_of, token_ids)))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._hidden_token_ids:
            return b""
        data = self._tokenizer.bytes_of(token_id)
        if self._leading_space is LeadingSpace.KEEP or not data:
            return data
        drop_one = self._leading_space is LeadingSpace.DROP_ONE
        self._leading_space = LeadingSpace.KEEP
        return data.removeprefix(b" ") if drop_one else data.replace(b" ", b"")


BYTE_FALLBACK_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
PieceRule = Callable[[str], bytes]


def _decoding(decoder: Mapping[str, Any] | None) -> tuple[PieceRule, LeadingSpace]:
    if decoder is None:
        raise TokenizerFilesError("tokenizer.json has no decoder")
    steps = list(_steps(decoder))
    return _rule(steps), _leading_space(steps)


def _rule(steps: list[Mapping[str, Any]]) -> PieceRule:
    match steps:
        case [{"type": "WordPiece", "prefix": str(prefix)}]:
            return partial(_word_piece, prefix=prefix)
        case _ if _is_byte_level(steps):
            return _byte_level_piece
    return _sentencepiece_rule(steps)


def _is_byte_level(steps: list[Mapping[str, Any]]) -> bool:
    return [step["type"] for step in steps if step["type"] != "Fuse"] == ["ByteLevel"]


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 is its own byte, others follow in order from U+0100."""
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


def _sentencepiece_rule(steps: list[Mapping[str, Any]]) -> PieceRule:
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
    """The length as UTF-8; a lone surrogate counts as one."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _steps(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if part.get("type") != "Sequence":
        yield part
        return
    for step in part.get("decoders") or []:
        yield from _steps(step)
