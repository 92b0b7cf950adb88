"""The rules that split text before its pieces are merged, by the names that GGUF files give them.

A file keeps only the name; the rules themselves are here, one line each. They must be exact, or
text tokenizes into other pieces than the model was trained on, so a name that is not listed is
refused. Sources: tokenizer.json of the models named, and llama.cpp's src/llama-vocab.cpp for which
name means which. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import Regex
from tokenizers import pre_tokenizers as pre

from inference.protocol.load_errors import UnknownTokenizerError

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
QWEN35_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_4O_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


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
    "qwen35": _split_by(QWEN35_SPLIT),
    "gpt-4o": _split_by(GPT_4O_SPLIT),
    "dbrx": _split_by(LLAMA3_SPLIT),
    "smaug-bpe": _split_by(LLAMA3_SPLIT),
    "glm4": _split_by(LLAMA3_SPLIT),
    "chatglm-bpe": _split_by(LLAMA3_SPLIT),
}
WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
"""Vocabularies that use a whole word's token if they have one, before any merges."""
COMPOSED_UNICODE = frozenset({"qwen2", "qwen35", "deepseek-r1-qwen"})
"""Vocabularies whose text is brought to NFC first."""
BEGINS_WITH_BOS = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
"""Texts begin with bos unless tokenizer.ggml.add_bos_token is false."""


def pre_tokenizer(name: str) -> pre.PreTokenizer:
    """Raises ``UnknownTokenizerError``."""
    if name not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnknownTokenizerError(
            f"the file splits text by the rule {name!r}, which is not known here ({known})"
        )
    return PRE_TOKENIZERS[name]()
