"""Tokenizers of GGUF files, from their metadata or from the repository that it names; and a
directory's slow one, which is converted once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from inference.loading.gguf.header import GGUFHeader, read_header
from inference.loading.gguf.pre_tokenizers import PRE_TOKENIZERS
from inference.loading.gguf.tokenizer import WARNING, convert_tokenizer
from inference.loading.tokenizer_files import (
    base_repositories,
    directory_tokenizer,
    tokenizer_directory,
    tokenizer_warnings,
)
from inference.protocol.load_errors import BadFileError, DownloadFailedError, MissingFileError
from inference.text.template_sources import find_templates
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


def test_text_is_cut_as_the_models_were_trained() -> None:
    for pre, expected in (
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
    ):
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


def test_the_beginning_of_a_text_and_the_templates() -> None:
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
    one = {"tokenizer.chat_template": "plain"}
    _, config = convert_tokenizer(byte_level("smollm", **one))
    assert config["chat_template"] == "plain"
    both = one | {"tokenizer.chat_template.tool_use": "with tools"}
    _, config = convert_tokenizer(byte_level("smollm", **both))
    assert config["chat_template"] == [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with tools"},
    ]


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
        (words,) = tokenizer_warnings(tokenizer_directory(header, tmp_path, Path))
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


def test_sentencepiece_merges_the_best_score_first_and_spells_the_rest_in_bytes() -> None:
    for text, tokens, changes in (
        # bc (-1) before ab (-2): the space and the first a are left, and join.
        ("abc", "<s> \u2581a bc", {}),
        ("bcab abc", "<s> \u2581 bc ab \u2581a bc", {}),
        ("a é\n", "<s> \u2581a \u2581 <0xC3> <0xA9> <0x0A>", {}),
        ("ab", "<s> ab", {"tokenizer.ggml.add_space_prefix": False}),
    ):
        tokenizer, config = convert_tokenizer(SENTENCEPIECE | changes)
        assert config["add_bos_token"] is True
        encoded = tokenizer.encode(text)
        assert encoded.tokens == tokens.split(" ")
        assert tokenizer.decode(encoded.ids) == text
        untyped = {"tokenizer.ggml.token_type": [2, 1, 1] + [6] * 256 + [1] * 8}
        tokenizer, config = convert_tokenizer(SENTENCEPIECE | untyped)
        assert tokenizer.encode("ab</s>", add_special_tokens=False).tokens[-1] == "</s>"
        assert "</s>" in config[WARNING], "declared tokens are single too"


def test_the_directory_is_written_once_and_transformers_reads_it(
    default_gguf: Path, tmp_path: Path
) -> None:
    directory = tokenizer_directory(read_header(default_gguf), tmp_path, Path)
    before = (directory / "tokenizer.json").stat().st_mtime_ns
    assert tokenizer_directory(read_header(default_gguf), tmp_path, Path) == directory
    assert (directory / "tokenizer.json").stat().st_mtime_ns == before
    config = config_of(directory)
    assert config["eos_token"] == "<|im_end|>" and config["add_bos_token"] is False
    tokenizer = AutoTokenizer.from_pretrained(directory)
    found = tokenizer("<|im_start|>user\nWhat is 1234?<|im_end|>\n")["input_ids"]
    assert found[:3] == [1, 4093, 198] and len(found) == 13
    turns = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


TEMPLATE = "{{ messages[0].content }}"


def based(pre: str, **changes: Any) -> dict[str, Any]:
    """With an unused token, and the name of the repository that it was made from."""
    own = byte_level(pre)
    tokens, types = own["tokenizer.ggml.tokens"], own["tokenizer.ggml.token_type"]
    more = {"tokenizer.ggml.tokens": [*tokens, "[PAD]"], "tokenizer.ggml.token_type": [*types, 5]}
    url = {"general.base_model.0.repo_url": "https://huggingface.co/org/base"}
    return own | more | {"general.base_model.count": 1} | url | changes


def header(folder: Path, contents: dict[str, Any]) -> GGUFHeader:
    path = folder / "model.gguf"
    path.write_bytes(json.dumps(contents).encode())
    size = path.stat().st_size
    return GGUFHeader(path=path, metadata=contents, tensors={}, data_offset=size)


def config_of(directory: Path) -> Any:
    return json.loads((directory / "tokenizer_config.json").read_text())


def test_repositories_that_the_metadata_names() -> None:
    hub, two = "https://huggingface.co/", "general.base_model."
    both = {f"{two}count": 2, f"{two}0.repo_url": f"{hub}a/b", f"{two}1.repo_url": f"{hub}c/d-1.5"}
    for given, expected in (
        ({"general.source.repo_url": f"{hub}a/b/"}, ["a/b"]),
        ({"general.source.huggingface.repository": "a/b"}, ["a/b"]),
        ({"general.url": "https://example.org/a/b"}, []),
        ({f"{two}count": "two"}, []),
        (both | {"general.repo_url": "https://hf.co/c/d-1.5"}, ["c/d-1.5", "a/b"]),
    ):
        assert base_repositories(given) == expected


OTHERWISE = [*BYTE_ALPHABET, "abc", "ab", "<|end|>", "<think>", "[PAD]"]


def test_what_a_file_lacks_is_its_bases(tmp_path: Path) -> None:
    """The base's tokenizer has the file's vocabulary, and a rule of its own."""
    base, asked = tmp_path / "base", list[str]()
    base.mkdir()
    tokenizer, config = convert_tokenizer(byte_level("qwen2"))
    tokenizer.save(str(base / "tokenizer.json"))
    config |= {"chat_template": TEMPLATE, "model_max_length": 512}
    (base / "tokenizer_config.json").write_text(json.dumps(config))

    def fetch(repo: str) -> Path:
        asked.append(repo)
        if repo != "org/base":
            raise DownloadFailedError(f"{repo} cannot be had")
        return base

    def nothing(repo: str) -> Path:
        return fetch(f"not {repo}")

    contents = based("superbpe", **{"tokenizer.ggml.add_bos_token": False})
    directory = tokenizer_directory(header(tmp_path, contents), tmp_path, fetch)
    written = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert written.encode("ab<|end|>").ids == [256, 258]
    config = config_of(directory)
    assert config["model_max_length"] == 512, "a key that the file lacks is the base's"
    assert (config["add_bos_token"], config["eos_token"]) == (False, "<|end|>")
    assert config["chat_template"] == TEMPLATE
    asked.clear()
    assert tokenizer_directory(header(tmp_path, contents), tmp_path, fetch) == directory
    assert asked == [], "converted once"

    # A missing template is asked for again, and the file's own wins.
    known = header(tmp_path, based("qwen2"))
    assert "chat_template" not in config_of(tokenizer_directory(known, tmp_path, nothing))
    directory = tokenizer_directory(known, tmp_path, fetch)
    assert config_of(directory)["chat_template"] == TEMPLATE
    own = header(tmp_path, based("superbpe", **{"tokenizer.chat_template": "own"}))
    assert config_of(tokenizer_directory(own, tmp_path, fetch))["chat_template"] == "own"

    # A downloaded repository falls back to its name without GGUF.
    snapshot = tmp_path / "models--org--base-GGUF" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    nameless = based("superbpe")
    del nameless["general.base_model.count"]
    for number, contents in enumerate(({}, nameless)):
        asked.clear()
        directory = tokenizer_directory(header(snapshot, contents), tmp_path / str(number), fetch)
        assert asked[0] == "org/base"
        assert config_of(directory)["chat_template"] == TEMPLATE

    changes: dict[str, Any]
    for changes, fetched, words in (
        ({"tokenizer.ggml.tokens": OTHERWISE}, fetch, "token 256 is 'abc', which there is"),
        ({}, nothing, r"'superbpe'.*org/base cannot be had.*beside the file"),
        ({"general.base_model.count": 0}, nothing, "names no repository"),
    ):
        with pytest.raises(BadFileError, match=words):
            found = header(tmp_path, based("superbpe", **changes))
            tokenizer_directory(found, tmp_path / "other", fetched)


def test_a_slow_tokenizer_is_converted_once_with_its_directorys_template(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    vocabulary = {chr(c): c - 33 for c in range(33, 127)} | {"Ġ": 94, "ab": 95, "<|end|>": 96}
    (model / "vocab.json").write_text(json.dumps(vocabulary))
    (model / "merges.txt").write_text("#version: 0.2\na b\n")
    own = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|end|>", "unk_token": None}
    own["chat_template"] = "of the configuration"
    (model / "tokenizer_config.json").write_text(json.dumps(own))
    converted = directory_tokenizer(model, tmp_path / "cache")
    assert converted.is_relative_to(tmp_path / "cache" / "tokenizers")
    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    assert tokenizer.encode("ab!").tokens == ["ab", "!"]
    written = (converted / "tokenizer.json").stat().st_mtime_ns
    assert directory_tokenizer(model, tmp_path / "cache") == converted
    assert (converted / "tokenizer.json").stat().st_mtime_ns == written
    assert directory_tokenizer(converted, tmp_path) == converted, "it is used where it lies"
    assert find_templates(converted, None).default == "of the configuration"
    for name, own in (("jinja", "own"), ("json", json.dumps({"chat_template": "own"}))):
        (model / f"chat_template.{name}").write_text(own)
        converted = directory_tokenizer(model, tmp_path / "cache")
        assert find_templates(converted, None).default == "own"
        (model / f"chat_template.{name}").unlink()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(MissingFileError, match=r"tokenizer\.json"):
        directory_tokenizer(empty, tmp_path / "none")
    (empty / "tokenizer.model").write_bytes(b"not sentencepiece")
    with pytest.raises(BadFileError, match="cannot be converted"):
        directory_tokenizer(empty, tmp_path / "none")
    assert not list((tmp_path / "none" / "tokenizers").iterdir())
