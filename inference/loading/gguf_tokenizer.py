"""A tokenizer directory out of a GGUF file's metadata, written once per vocabulary.

    <cache>/tokenizers/<hash of the metadata>/ tokenizer.json, tokenizer_config.json

    metadata ─▶ convert ─▶ directory
                   └ unknown rule, or no chat template ─▶ the base repository's files (base_repo.py)

GGUF keeps the vocabulary, the merges or scores, and the *name* of the rule that splits text before
merging; the rules themselves are in ``PRE_TOKENIZERS``, one line each. They must be exact, or text
tokenizes into other pieces than the model was trained on, so for a name not listed the tokenizer of
the repository that the file was made from is used, and where it names none it is refused.
Sources: tokenizer.json of the models named, and llama.cpp's src/llama-vocab.cpp for which name
means which. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from tokenizers import pre_tokenizers as pre

from inference.loading.base_repo import (
    FetchTokenizer,
    base_chat_template,
    base_repositories,
    base_tokenizer,
    no_repository,
)
from inference.loading.errors import BadFileError, UnknownTokenizerError
from inference.loading.gguf_header import GGUFHeader

CONVERTER_VERSION = b"2"
"""Part of the hash: raise it when the same metadata gives another tokenizer."""

CONTROL, USER_DEFINED = 3, 4
"""Of tokenizer.ggml.token_type."""

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPACE = "\u2581"

Metadata = Mapping[str, Any]


def _byte_level() -> pre.PreTokenizer:
    return pre.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_byte_level() -> pre.PreTokenizer:
    return pre.Sequence([pre.Digits(individual_digits=True), _byte_level()])


def _split_by(pattern: str) -> Callable[[], pre.PreTokenizer]:
    return lambda: pre.Sequence(
        [
            pre.Split(Regex(pattern), behavior="isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


PRE_TOKENIZERS: dict[str, Callable[[], pre.PreTokenizer]] = {
    "gpt-2": _byte_level,
    "gpt2": _byte_level,
    "smollm": _digits_then_byte_level,
    "starcoder": _digits_then_byte_level,
    "refact": _digits_then_byte_level,
    "llama-bpe": _split_by(LLAMA3_SPLIT),
    "llama3": _split_by(LLAMA3_SPLIT),
    "llama-v3": _split_by(LLAMA3_SPLIT),
    "qwen2": _split_by(QWEN2_SPLIT),
    "deepseek-r1-qwen": _split_by(QWEN2_SPLIT),
    "tekken": _split_by(TEKKEN_SPLIT),
}
WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
"""Vocabularies that take a word whole when they have it, whatever the merges say."""
COMPOSED_UNICODE = frozenset({"qwen2", "deepseek-r1-qwen"})
"""Vocabularies whose text is brought to NFC first."""
BEGINS_WITH_BOS = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
"""Unless tokenizer.ggml.add_bos_token says otherwise."""


def tokenizer_directory(
    header: GGUFHeader, cache_dir: Path, fetch: FetchTokenizer = no_repository
) -> Path:
    """``fetch`` brings a repository's tokenizer files. Raises ``BadFileError``."""
    directory = cache_dir / "tokenizers" / _fingerprint(header)
    if directory.is_dir():
        return directory
    definition, config = _tokenizer_of(header.metadata, fetch)
    if "chat_template" not in config:
        template = base_chat_template(header.metadata, fetch)
        if template is None and base_repositories(header.metadata):
            # Asked again at the next load: the hub may only have been out of reach.
            directory = directory.with_name(f"{directory.name}-no-template")
        elif template is not None:
            config["chat_template"] = template
    _write(directory, definition, config)
    return directory


def _tokenizer_of(metadata: Metadata, fetch: FetchTokenizer) -> tuple[str, dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json, out of the metadata or the base repository."""
    try:
        tokenizer, config = convert_tokenizer(metadata)
        return tokenizer.to_str(), config
    except UnknownTokenizerError as error:
        definition, base_config = base_tokenizer(metadata, fetch, error)
        return definition, {**base_config, **_told_config(metadata)}


def _write(directory: Path, definition: str, config: Mapping[str, Any]) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=directory.parent) as partial:
        written = Path(partial) / "tokenizer"
        written.mkdir()
        (written / "tokenizer.json").write_text(definition, encoding="utf-8")
        (written / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
        _publish(written, directory)


def convert_tokenizer(metadata: Metadata) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer and its tokenizer_config.json. Raises ``BadFileError``."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level_bpe(metadata)
    elif kind == "llama":
        tokenizer = _sentencepiece_bpe(metadata)
    else:
        raise UnknownTokenizerError(
            f"tokenizer.ggml.model is {kind!r}; gpt2 and llama are read here"
        )
    _add_special_tokens(tokenizer, metadata)
    config = _tokenizer_config(metadata)
    _begin_and_end(tokenizer, config)
    return tokenizer, config


def _byte_level_bpe(metadata: Metadata) -> Tokenizer:
    name = str(metadata.get("tokenizer.ggml.pre"))
    if name not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnknownTokenizerError(
            f"the file splits text by the rule {name!r}, which is not known here ({known})"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in _list(metadata, "merges")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=_vocabulary(metadata), merges=merges, ignore_merges=name in WHOLE_WORDS_FIRST
        )
    )
    if name in COMPOSED_UNICODE:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[name]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece_bpe(metadata: Metadata) -> Tokenizer:
    """Llama 2's and Mistral's kind: spaces are a visible character, unknown characters bytes."""
    tokens: list[str] = _list(metadata, "tokens")
    unknown_id = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=_vocabulary(metadata),
            merges=_merges_by_score(tokens, _list(metadata, "scores")),
            unk_token=tokens[unknown_id],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    replace = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if prefix else replace
    )
    decoding = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*decoding, decoders.Strip(" ", 1, 0)] if prefix else decoding
    )
    return tokenizer


def _list(metadata: Metadata, key: str) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, list):
        raise BadFileError(f"the GGUF metadata lacks tokenizer.ggml.{key}")
    return value


def _vocabulary(metadata: Metadata) -> dict[str, int]:
    tokens: list[str] = _list(metadata, "tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise BadFileError("the vocabulary holds the same token twice")
    return vocabulary


def _merges_by_score(tokens: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece merges whichever pair makes the best-scored piece: the merges are all the ways
    to cut a piece in two pieces, by the score of the whole, ties by their place in the vocabulary.
    """
    ids = {token: index for index, token in enumerate(tokens)}
    ranked: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((-score, ids[left], ids[right], (left, right)))
    return [pair for *_, pair in sorted(ranked)]


def _add_special_tokens(tokenizer: Tokenizer, metadata: Metadata) -> None:
    tokens: list[str] = _list(metadata, "tokens")
    kinds: list[int] = metadata.get("tokenizer.ggml.token_type", [])
    control = [token for token, kind in zip(tokens, kinds, strict=False) if kind == CONTROL]
    defined = [token for token, kind in zip(tokens, kinds, strict=False) if kind == USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in defined])


def _tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    begins = metadata.get("tokenizer.ggml.model") == "llama" or (
        metadata.get("tokenizer.ggml.pre") in BEGINS_WITH_BOS
    )
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": begins,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        **_told_config(metadata),
    }


def _told_config(metadata: Metadata) -> dict[str, Any]:
    """What the file itself says, under tokenizer_config.json's names."""
    tokens: list[str] = _list(metadata, "tokens")
    config: dict[str, Any] = {
        ours: tokens[token_id]
        for ours, theirs in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("unk_token", "unknown"),
            ("pad_token", "padding"),
        )
        if (token_id := metadata.get(f"tokenizer.ggml.{theirs}_token_id")) is not None
    }
    for name in ("add_bos_token", "add_eos_token"):
        if (flag := metadata.get(f"tokenizer.ggml.{name}")) is not None:
            config[name] = bool(flag)
    if template := metadata.get("tokenizer.chat_template"):
        config["chat_template"] = _named_templates(template, metadata)
    return config


def _named_templates(template: str, metadata: Metadata) -> str | list[dict[str, str]]:
    """As tokenizer_config.json writes them, where there is a second one for chats with tools."""
    for_tools = metadata.get("tokenizer.chat_template.tool_use")
    if for_tools is None:
        return template
    named = {"default": template, "tool_use": for_tools}
    return [{"name": name, "template": text} for name, text in named.items()]


def _begin_and_end(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    """tokenizer.json itself says what stands around a text, for readers that know no config."""
    before = [config["bos_token"]] if config["add_bos_token"] and "bos_token" in config else []
    after = [config["eos_token"]] if config["add_eos_token"] and "eos_token" in config else []
    if not before and not after:
        return
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B:1", *after],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in {*before, *after}],
    )


def _fingerprint(header: GGUFHeader) -> str:
    digest = hashlib.sha256(CONVERTER_VERSION)
    with header.path.open("rb") as file:
        digest.update(file.read(header.data_offset))
    return digest.hexdigest()[:24]


def _publish(written: Path, directory: Path) -> None:
    try:
        written.rename(directory)
    except OSError:
        if not directory.is_dir():  # else another process was quicker, with the same content
            raise
