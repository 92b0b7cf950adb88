"""Makes a tokenizer from a GGUF file's metadata. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, TemplateSyntaxError
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from inference.loading.gguf.pre_tokenizers import (
    BEGINS_WITH_BOS,
    COMPOSED_UNICODE,
    WHOLE_WORDS_FIRST,
    pre_tokenizer,
)
from inference.protocol.load_errors import BadFileError, LoadError, UnknownTokenizerError

CONTROL, USER_DEFINED = 3, 4
"""Values of tokenizer.ggml.token_type."""
DECLARED = re.compile(r"tokenizer\.ggml\.\w+_token_id")
MARKER = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]{2,}\]|\u25c1[^\u25c1\u25b7\s]+\u25b7")
TOOL_TEMPLATE = "tokenizer.chat_template.tool_use"
WARNING = "helexa_warning"
"""Our key of tokenizer_config.json: a sentence about the file's vocabulary."""

SPACE = "\u2581"

Metadata = Mapping[str, Any]
TOKENS = "tokenizer.ggml.tokens"
SPECIAL = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
}


def convert_tokenizer(metadata: Metadata) -> tuple[Tokenizer, dict[str, Any]]:
    """Returns also its tokenizer_config.json. Raises ``BadFileError``."""
    try:
        return _convert(metadata)
    except LoadError:
        raise
    except Exception as error:  # the tokenizers library raises this class itself
        raise BadFileError(f"the vocabulary makes no tokenizer: {error}") from error


def _convert(metadata: Metadata) -> tuple[Tokenizer, dict[str, Any]]:
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level_bpe(metadata)
    elif kind == "llama":
        tokenizer = _sentencepiece_bpe(metadata)
    else:
        raise UnknownTokenizerError(
            f"tokenizer.ggml.model is {kind!r}; gpt2 and llama are read here"
        )
    split = split_tokens(tokenizer, metadata)
    _add_special_tokens(tokenizer, metadata, split)
    config = _tokenizer_config(metadata)
    if split:
        config[WARNING] = _in_words(split)
    _begin_and_end(tokenizer, config)
    return tokenizer, config


def _byte_level_bpe(metadata: Metadata) -> Tokenizer:
    name = metadata.get("tokenizer.ggml.pre")
    if not isinstance(name, str):
        raise UnknownTokenizerError(
            "the file does not say by which rule it splits text (tokenizer.ggml.pre), as files "
            "from before May 2024 do not; use a file that was converted since"
        )
    splits_first = pre_tokenizer(name)
    merges = [tuple(merge.split(" ", 1)) for merge in _list(metadata, "merges")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=_vocabulary(metadata), merges=merges, ignore_merges=name in WHOLE_WORDS_FIRST
        )
    )
    if name in COMPOSED_UNICODE:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splits_first
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


def _add_special_tokens(
    tokenizer: Tokenizer, metadata: Metadata, split: Mapping[str, bool]
) -> None:
    typed = _typed(metadata)
    for kind, is_special in ((CONTROL, True), (USER_DEFINED, False)):
        tokens = [token for token, own in typed if own == kind]
        tokens += [token for token, is_declared in split.items() if is_declared is is_special]
        added = [AddedToken(token, normalized=False, special=is_special) for token in tokens]
        (tokenizer.add_special_tokens if is_special else tokenizer.add_tokens)(added)


def _typed(metadata: Metadata) -> list[tuple[str, int]]:
    kinds: list[int] = metadata.get("tokenizer.ggml.token_type", [])
    return list(zip(_list(metadata, "tokens"), kinds, strict=False))


def split_tokens(tokenizer: Tokenizer, metadata: Metadata) -> dict[str, bool]:
    """The tokens that must be single but that the file's types let a text cut into pieces: those
    whose ids it declares (``True``), and its chat template's markers (``False``). ``tokenizer``:
    without its special tokens."""
    ids = {token: token_id for token_id, token in enumerate(_list(metadata, "tokens"))}
    tokens = list(ids)
    single = {token for token, kind in _typed(metadata) if kind in (CONTROL, USER_DEFINED)}
    declared = {
        tokens[token_id]
        for key, token_id in metadata.items()
        if DECLARED.fullmatch(key) and isinstance(token_id, int) and 0 <= token_id < len(tokens)
    }
    markers = template_markers(metadata) & ids.keys()
    return {
        token: token in declared
        for token in sorted((declared | markers) - single, key=ids.__getitem__)
        if token and _ids_of_text(tokenizer, token) != [ids[token]]
    }


def template_markers(metadata: Metadata) -> set[str]:
    sources = [metadata.get("tokenizer.chat_template"), metadata.get(TOOL_TEMPLATE)]
    found: set[str] = set()
    for source in sources:
        try:
            lexed = list(Environment().lex(source)) if isinstance(source, str) else []
        except TemplateSyntaxError:
            continue  # the load report says what is wrong with it
        texts = (text for _, kind, text in lexed if kind in ("data", "string"))
        found.update(marker for text in texts for marker in MARKER.findall(text))
    return found


def _ids_of_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Without the space that sentencepiece puts before a text."""
    if tokenizer.pre_tokenizer is None:
        return [token.id for token in tokenizer.model.tokenize(text)]
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _in_words(split: Mapping[str, bool]) -> str:
    return (
        f"the file types {', '.join(split)} as ordinary text, and declares their ids or writes "
        "them in its chat template: each is read as the single token that it is; a file that is "
        "converted anew has the right types"
    )


def _tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    begins = metadata.get("tokenizer.ggml.model") == "llama" or (
        metadata.get("tokenizer.ggml.pre") in BEGINS_WITH_BOS
    )
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": begins,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        **own_config(metadata),
    }


def own_config(metadata: Metadata) -> dict[str, Any]:
    """Has no special tokens without a vocabulary. Raises ``BadFileError``."""
    tokens: list[str] = _list(metadata, "tokens") if TOKENS in metadata else []
    config: dict[str, Any] = {}
    for ours, theirs in SPECIAL.items():
        token_id = metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        if token_id is not None and tokens:
            config[ours] = tokens[token_id]
    for name in ("add_bos_token", "add_eos_token"):
        if (flag := metadata.get(f"tokenizer.ggml.{name}")) is not None:
            config[name] = bool(flag)
    template, for_tools = metadata.get("tokenizer.chat_template"), metadata.get(TOOL_TEMPLATE)
    if not isinstance(template, str | None) or not isinstance(for_tools, str | None):
        raise BadFileError("tokenizer.chat_template is no text")
    if template:
        config["chat_template"] = template
    if template and for_tools is not None:  # as tokenizer_config.json writes them
        named = {"default": template, "tool_use": for_tools}
        config["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
    return config


def _begin_and_end(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    """Write bos and eos into tokenizer.json's post-processor, for readers without the config."""
    before = [config["bos_token"]] if config["add_bos_token"] and "bos_token" in config else []
    after = [config["eos_token"]] if config["add_eos_token"] and "eos_token" in config else []
    if not before and not after:
        return
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B:1", *after],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in {*before, *after}],
    )
