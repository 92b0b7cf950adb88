from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from inference.loading.gguf.header import read_header
from inference.loading.gguf.pre_tokenizers import PRE_TOKENIZERS
from inference.loading.gguf.tokenizer import WARNING, convert_tokenizer
from inference.loading.tokenizer_files import tokenizer_directory, tokenizer_warnings
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case
from tests.inference.loading.conftest import save_gguf

BYTE_ALPHABET = [
    *(chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))),
    *(chr(256 + i) for i in range(68)),
]
"""The 256 characters that byte-level vocabularies spell bytes with."""


def byte_level(pre: str, **changes: Any) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*BYTE_ALPHABET, "ab", "abc", "<|end|>", "<think>"],
        "tokenizer.ggml.token_type": [1] * 258 + [3, 4],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 258,
        "tokenizer.ggml.eos_token_id": 258,
    } | changes


@each_case(
    ("pre", "expected"),
    [
        ("gpt-2", "Don|'t| add| 12345|+|x|  | y|\n|\n|z| I|'|LLaB世カc"),
        ("smollm", "Don|'t| add| |1|2|3|4|5|+|x|  | y|\n|\n|z| I|'|LLaB世カc"),
        ("llama-bpe", "Don|'t| add| |123|45|+x|  | y|\n\n|z| I|'LL|aB世カc"),
        ("qwen2", "Don|'t| add| |1|2|3|4|5|+x|  | y|\n\n|z| I|'LL|aB世カc"),
        ("tekken", "Don|'t| add| |1|2|3|4|5|+x|  | y|\n\n|z| I|'LLa|B世カc"),
        ("qwen35", "Don|'t| add| |1|2|3|4|5|+x|  | y|\n\n|z| I|'LL|aB世カc"),
        ("gpt-4o", "Don't| add| |123|45|+x|  | y|\n\n|z| I'LL|a|B世カc"),
        ("hunyuan-dense", "Don|'t| add| |123|45|+x|  | y|\n\n|z| I|'LLaB|世カ|c"),
        ("exaone-moe", "Don|'t| add| |1|2|3|4|5|+x|  | y|\n\n|z I|'LL|aB世カc"),
        ("seed-coder", "Don|'t| add| |1|2|3|4|5|+x|  | y|\n\n|z| I|'LL|aB世カc"),
        ("kimi-k2", "Don't| add| |123|45|+x|  | y|\n\n|z| I'LL|a|B|世|カc"),
        ("falcon", "Don|'|t| add| |123|45|+|x|  | y|\n|\n|z| I|'|LLaB世カc"),
        ("default", "Don|'|t| add| |123|45|+|x|  | y|\n|\n|z| I|'|LLaB世カc"),
        ("bloom", "Don't| add| 12345+x|  | y|\n\n|z| I'LLaB世カc"),
        ("viking", "Don't| add| |1|2|3|4|5|+x|  | y|\n\n|z| I'LLaB世カc"),
        ("deepseek-llm", "Don|'|t| add| |12345|+|x|  | y|\n|\n|z| I|'|LLaB|世カ|c"),
        ("deepseek-coder", "Don|'|t| add| |1|2|3|4|5|+|x|  | y|\n|\n|z| I|'|LLaB|世カ|c"),
        ("deepseek-v3", "Don|'t| add| |123|45|+x|  | y|\n\n|z| I|'LLaB|世カ|c"),
    ],
)
def test_text_is_cut_as_the_models_were_trained(pre: str, expected: str) -> None:
    text = "Don't add 12345+x   y\n\nz I'LLaB世カc"
    cuts = PRE_TOKENIZERS[pre]().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cuts] == expected.split("|")


def test_whole_words_come_before_merges_and_control_tokens_are_one_id() -> None:
    """ "abc" is in the vocabulary and no merge makes it. User-defined tokens are plain text."""
    for pre in ("glm4", "lfm2", "llama-bpe", "chatglm-bpe", "smollm"):
        tokenizer, _ = convert_tokenizer(byte_level(pre))
        expected = ["ab", "c"] if pre in ("chatglm-bpe", "smollm") else ["abc"]
        assert tokenizer.encode("abc", add_special_tokens=False).tokens == expected, pre
    ids = tokenizer.encode("ab<|end|>c<think>").ids
    assert ids == [256, 258, BYTE_ALPHABET.index("c"), 259]
    assert tokenizer.decode(ids) == "abc<think>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "ab<|end|>c<think>"


def test_the_beginning_of_a_text() -> None:
    for pre, changes, begins in (
        ("smollm", {}, False),
        ("llama-bpe", {}, True),
        ("llama-bpe", {"tokenizer.ggml.add_bos_token": False}, False),
        ("smollm", {"tokenizer.ggml.add_bos_token": True}, True),
    ):
        tokenizer, config = convert_tokenizer(byte_level(pre, **changes))
        assert tokenizer.encode("ab").ids == ([258] if begins else []) + [256]
        assert config["add_bos_token"] is begins
        assert config["bos_token"] == "<|end|>"


TURNS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] }}{{ messages[0] }}<|im_end|>[INST] <b> x"
    "{% endfor %}"
)


def typed_as_text(**changes: Any) -> dict[str, Any]:
    """A file whose markers are typed NORMAL."""
    named = ["<|end|>", "<|im_start|>", "<|im_end|>", "[0]", "['role']", "<|fim|>", "[INST]"]
    tokens = [*BYTE_ALPHABET, "ab", *named]
    return byte_level("llama-bpe", **changes) | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.bos_token_id": tokens.index("a"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|end|>"),
        "tokenizer.ggml.eot_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokens.index("!"),
        "tokenizer.ggml.fim_pre_token_id": tokens.index("<|fim|>"),
        "tokenizer.chat_template": TURNS,
    }


def test_declared_tokens_and_the_templates_markers_are_single_whatever_their_type() -> None:
    tokenizer, config = convert_tokenizer(typed_as_text())
    text = "<|im_start|>ab<|im_end|>[INST]a!<|end|><|fim|>"
    tokens = tokenizer.encode(text, add_special_tokens=False).tokens
    assert tokens == ["<|im_start|>", "ab", "<|im_end|>", "[INST]", "a", "!", "<|end|>", "<|fim|>"]
    added = tokenizer.get_added_tokens_decoder().values()
    single = {"<|end|>", "<|im_start|>", "<|im_end|>", "<|fim|>", "[INST]"}
    assert {one.content for one in added} == single
    assert {one.content for one in added if one.special} == {"<|end|>", "<|im_end|>", "<|fim|>"}
    for token in ("<|im_start|>", "<|im_end|>", "[INST]"):
        assert token in config[WARNING]
    assert WARNING not in convert_tokenizer(byte_level("llama-bpe"))[1]
    broken = {"tokenizer.chat_template": "{{ '<|im_end|>' {% "}
    tokenizer, config = convert_tokenizer(typed_as_text() | broken)
    assert "<|im_start|>" not in config[WARNING], "markers of a template that cannot be read"
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False).tokens == ["<|im_end|>"]


def test_a_warning_about_the_vocabulary_stays_with_its_directory(tmp_path: Path) -> None:
    header = read_header(save_gguf(tmp_path / "x.gguf", {"model.norm.weight": torch.ones(64)}))
    kinds = {"tokenizer.ggml.token_type": [1] * 64}
    header = replace(header, metadata=dict(header.metadata) | kinds)
    for _ in range(2):
        (words,) = tokenizer_warnings(tokenizer_directory(header, tmp_path))
        assert "<s>" in words and "</s>" in words
    assert tokenizer_warnings(tmp_path) == []


def test_unknown_rules_are_refused_and_the_fix_is_named() -> None:
    pre, merges = "tokenizer.ggml.pre", "tokenizer.ggml.merges"
    for metadata, words in (
        (byte_level("superbpe"), r"'superbpe'.*smollm"),
        (byte_level("x", **{pre: None}), r"tokenizer\.ggml\.pre.*converted since"),
        ({"tokenizer.ggml.model": "bert"}, "'bert'"),
        (byte_level("qwen2", **{merges: None}), r"tokenizer\.ggml\.merges"),
    ):
        with pytest.raises(BadFileError, match=words):
            convert_tokenizer({key: value for key, value in metadata.items() if value is not None})


SENTENCEPIECE = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": [
        "<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581", "a", "b", "c", "\u2581a", "ab", "bc", "abc",
    ],
    "tokenizer.ggml.scores": [0.0] * 259 + [-9.0, -8.0, -7.0, -6.0, -3.0, -2.0, -1.0, -4.0],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 8,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}  # fmt: skip


@each_case(
    ("text", "tokens", "changes"),
    [
        # bc (-1) before ab (-2): the space and the first a are left, and join.
        ("abc", "<s> \u2581a bc", {}),
        ("bcab abc", "<s> \u2581 bc ab \u2581a bc", {}),
        ("a é\n", "<s> \u2581a \u2581 <0xC3> <0xA9> <0x0A>", {}),
        ("ab", "<s> ab", {"tokenizer.ggml.add_space_prefix": False}),
    ],
)
def test_sentencepiece_merges_the_best_score_first_and_spells_the_rest_in_bytes(
    text: str, tokens: str, changes: dict[str, Any]
) -> None:
    tokenizer, config = convert_tokenizer(SENTENCEPIECE | changes)
    assert config["add_bos_token"] is True
    encoded = tokenizer.encode(text)
    assert encoded.tokens == tokens.split(" ")
    assert tokenizer.decode(encoded.ids) == text
    untyped = {"tokenizer.ggml.token_type": [2, 1, 1] + [6] * 256 + [1] * 8}
    tokenizer, config = convert_tokenizer(SENTENCEPIECE | untyped)
    assert tokenizer.encode("ab</s>", add_special_tokens=False).tokens[-1] == "</s>"
    assert "</s>" in config[WARNING], "declared tokens are single too"


@pytest.fixture(scope="module")
def smollm_directory(default_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_directory(read_header(default_gguf), tmp_path_factory.mktemp("cache"))


# SmolLM2's vocabulary has no piece for six control characters, nor for the bytes that begin planes
# 4 to 11 of Unicode, where nothing is assigned. Its own tokenizer drops them too.
UNWRITABLE = "\x04\x06\x13\x14\x16\x1d"
WRITABLE = st.characters(
    max_codepoint=0x3FFFF, exclude_categories=["Cs"], exclude_characters=UNWRITABLE
)


def test_any_text_comes_back_exactly(smollm_directory: Path) -> None:
    smollm = Tokenizer.from_file(str(smollm_directory / "tokenizer.json"))

    @settings(max_examples=200, deadline=None)
    @given(text=st.text(WRITABLE, max_size=60))
    def comes_back(text: str) -> None:
        assert smollm.decode(smollm.encode(text).ids, skip_special_tokens=False) == text

    comes_back()


def test_a_second_template_is_kept_for_chats_with_tools() -> None:
    one = {"tokenizer.chat_template": "plain"}
    _, config = convert_tokenizer(byte_level("smollm", **one))
    assert config["chat_template"] == "plain"
    both = one | {"tokenizer.chat_template.tool_use": "with tools"}
    _, config = convert_tokenizer(byte_level("smollm", **both))
    assert config["chat_template"] == [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with tools"},
    ]


def test_the_directory_is_written_once_and_transformers_reads_it(
    smollm_directory: Path, default_gguf: Path
) -> None:
    before = (smollm_directory / "tokenizer.json").stat().st_mtime_ns
    again = tokenizer_directory(read_header(default_gguf), smollm_directory.parent.parent)
    assert again == smollm_directory
    assert (again / "tokenizer.json").stat().st_mtime_ns == before

    config = json.loads((smollm_directory / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|im_end|>" and config["add_bos_token"] is False
    tokenizer = AutoTokenizer.from_pretrained(smollm_directory)
    found = tokenizer("<|im_start|>user\nWhat is 1234?<|im_end|>\n")["input_ids"]
    assert found[:3] == [1, 4093, 198] and len(found) == 13
    turns = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
