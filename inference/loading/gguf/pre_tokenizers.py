"""The rules that split text before its pieces are merged, by GGUF's names. They must be exact, as
the model was trained on their pieces, so an unlisted name is refused. Sources: tokenizer.json of
the models named, and llama.cpp's src/llama-vocab.cpp for the names. Imports no torch."""

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

GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
FALCON_SPLITS = (r"[\p{P}\$\+<=>\^~\|`]+", GPT2_SPLIT, "[0-9][0-9][0-9]")
DEFAULT_SPLITS = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    "[0-9][0-9][0-9]",
)
"""The rule of files whose converter did not recognise theirs, as llama.cpp cuts them."""
SEED_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
EXAONE_MOE_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
BLOOM_SPLIT = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
KIMI_SPLIT = (
    r"\p{Han}+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

DEEPSEEK_CJK_SPLIT = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_CODER_SPLITS = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK_SPLIT, r"\p{N}")
DEEPSEEK_LETTERS = (
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters that have capitals, as DeepSeek's first tokenizer lists them."""
DEEPSEEK_SPLITS = (
    r"[\r\n]",
    rf"\s?[A-Za-z{DEEPSEEK_LETTERS}]+",
    r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    DEEPSEEK_CJK_SPLIT,
    r"\p{N}+",
)
DEEPSEEK3_SPLITS = (
    r"\p{N}{1,3}",
    r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def _byte_level() -> pre.PreTokenizer:
    return pre.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_byte_level() -> pre.PreTokenizer:
    return pre.Sequence([pre.Digits(individual_digits=True), _byte_level()])


def _split_by(*patterns: str) -> Callable[[], pre.PreTokenizer]:
    return lambda: pre.Sequence(
        [
            *(pre.Split(Regex(pattern), behavior="isolated") for pattern in patterns),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_RULES: tuple[tuple[Callable[[], pre.PreTokenizer], str], ...] = (
    (
        _byte_level,
        "gpt-2 gpt2 phi-2 mpt olmo jais trillion exaone4 granite-docling gigachat a.x-4.0 mellum",
    ),
    (
        _digits_then_byte_level,
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    ),
    (
        _split_by(LLAMA3_SPLIT),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 minicpm5 dbrx smaug-bpe"
        " glm4 glm5 chatglm-bpe",
    ),
    (
        _split_by(QWEN2_SPLIT),
        "qwen2 deepseek-r1-qwen hunyuan megrez kormo stablelm2 solar-open grok-2 bailingmoe"
        " bailingmoe2 llada-moe",
    ),
    (_split_by(QWEN35_SPLIT), "qwen35"),
    (_split_by(TEKKEN_SPLIT), "tekken"),
    (_split_by(GPT_4O_SPLIT), "gpt-4o llama4 minimax-m2 kanana2"),
    (_split_by(KIMI_SPLIT), "kimi-k2"),
    (_split_by(SEED_SPLIT), "seed-coder"),
    (_split_by(EXAONE_MOE_SPLIT), "exaone-moe"),
    (_split_by(*FALCON_SPLITS), "falcon"),
    (_split_by(*DEFAULT_SPLITS), "default"),
    (_split_by(BLOOM_SPLIT), "bloom gpt3-finnish poro-chat"),
    (_split_by(BLOOM_SPLIT, r"\p{N}"), "viking"),
    (_split_by(*DEEPSEEK_SPLITS), "deepseek-llm"),
    (_split_by(*DEEPSEEK_CODER_SPLITS), "deepseek-coder"),
    (_split_by(*DEEPSEEK3_SPLITS), "deepseek-v3 hunyuan-dense joyai-llm"),
)
PRE_TOKENIZERS = {name: rule for rule, names in _RULES for name in names.split()}
"""Keys are values of tokenizer.ggml.pre."""
BEGINS_WITH_BOS = frozenset(
    [
        *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
        *("lfm2", "tekken"),
    ]
)
"""Texts begin with bos unless tokenizer.ggml.add_bos_token is false."""
WHOLE_WORDS_FIRST = BEGINS_WITH_BOS | {"minicpm5", "glm4", "glm5"}
"""Vocabularies that use a whole word's token if they have one, before any merges."""
COMPOSED_UNICODE = frozenset(["qwen2", "qwen35", "deepseek-r1-qwen", "megrez", "command-r", "olmo"])
"""Vocabularies whose text is normalised to NFC first."""


def pre_tokenizer(name: str) -> pre.PreTokenizer:
    """Raises ``UnknownTokenizerError``."""
    if name not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnknownTokenizerError(
            f"the file splits text by the rule {name!r}, which is not known here ({known})"
        )
    return PRE_TOKENIZERS[name]()
