"""Tokenizers that have to be found or converted: what a GGUF's own metadata lacks comes from the
repository that it names, and a directory's slow one is converted once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from inference.loading.gguf.header import GGUFHeader
from inference.loading.gguf.tokenizer import convert_tokenizer
from inference.loading.tokenizer_files import (
    base_repositories,
    directory_tokenizer,
    tokenizer_directory,
)
from inference.protocol.load_errors import BadFileError, DownloadFailedError, MissingFileError
from inference.text.template_sources import find_templates
from tests.cases import each_case
from tests.inference.loading.gguf.test_tokenizer import BYTE_ALPHABET

TOKENS = [*BYTE_ALPHABET, "ab", "<|end|>"]
OTHERWISE = [*BYTE_ALPHABET, "<|end|>", "ab", "[PAD258]"]
REPO_URL = "https://huggingface.co/org/base"
TEMPLATE = "{{ messages[0].content }}"


def metadata(pre: str, **changes: Any) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*TOKENS, "[PAD258]"],
        "tokenizer.ggml.token_type": [1] * 257 + [3, 5],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 257,
        "general.base_model.count": 1,
        "general.base_model.0.repo_url": REPO_URL,
    } | changes


class Repositories:
    """Has the base repository where that has a folder, and no others."""

    def __init__(self, base: Path | None = None) -> None:
        self.base, self.asked = base, list[str]()

    def fetch(self, repo: str) -> Path:
        self.asked.append(repo)
        if repo != "org/base" or self.base is None:
            raise DownloadFailedError(f"{repo} cannot be had")
        return self.base


def header(folder: Path, contents: dict[str, Any]) -> GGUFHeader:
    path = folder / "model.gguf"
    path.write_bytes(json.dumps(contents).encode())
    size = path.stat().st_size
    return GGUFHeader(path=path, metadata=contents, tensors={}, data_offset=size)


def config_of(directory: Path) -> Any:
    return json.loads((directory / "tokenizer_config.json").read_text())


@pytest.fixture
def base(tmp_path: Path) -> Repositories:
    """Its tokenizer has the file's vocabulary, and a rule of its own."""
    folder = tmp_path / "base"
    folder.mkdir()
    tokenizer, config = convert_tokenizer(metadata("qwen2", **{"tokenizer.ggml.tokens": TOKENS}))
    tokenizer.save(str(folder / "tokenizer.json"))
    config |= {"chat_template": TEMPLATE, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Repositories(folder)


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


def test_an_unknown_rule_takes_the_tokenizer_of_the_base_and_keeps_it(
    base: Repositories, tmp_path: Path
) -> None:
    contents = metadata("superbpe", **{"tokenizer.ggml.add_bos_token": False})
    directory = tokenizer_directory(header(tmp_path, contents), tmp_path, base.fetch)
    written = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert written.encode("ab<|end|>").ids == [256, 257]
    config = config_of(directory)
    assert config["model_max_length"] == 512, "a key that the file lacks is the base's"
    assert (config["add_bos_token"], config["eos_token"]) == (False, "<|end|>")
    assert config["chat_template"] == TEMPLATE
    base.asked.clear()
    assert tokenizer_directory(header(tmp_path, contents), tmp_path, base.fetch) == directory
    assert base.asked == [], "converted once"


@each_case("lacking", ["a known rule", "a vocabulary"])
def test_a_downloaded_repository_falls_back_to_its_name_without_gguf(
    lacking: str, base: Repositories, tmp_path: Path
) -> None:
    contents = {} if lacking == "a vocabulary" else metadata("superbpe")
    contents.pop("general.base_model.count", None)
    snapshot = tmp_path / "models--org--base-GGUF" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    found = header(snapshot, contents)
    directory = tokenizer_directory(found, tmp_path / "cache", base.fetch)
    assert base.asked[0] == "org/base"
    assert config_of(directory)["chat_template"] == TEMPLATE


@each_case(
    ("changes", "has_base", "words"),
    [
        ({"tokenizer.ggml.tokens": OTHERWISE}, True, r"token 256 is '<\|end\|>', which there is"),
        ({}, False, r"'superbpe'.*org/base cannot be had.*beside the file"),
        ({"general.base_model.count": 0}, False, "names no repository"),
    ],
)
def test_what_was_tried_is_reported(
    base: Repositories, tmp_path: Path, changes: dict[str, Any], has_base: bool, words: str
) -> None:
    found = header(tmp_path, metadata("superbpe", **changes))
    with pytest.raises(BadFileError, match=words):
        tokenizer_directory(found, tmp_path, (base if has_base else Repositories()).fetch)


def test_a_missing_template_is_the_bases_or_asked_for_again_and_the_files_own_wins(
    base: Repositories, tmp_path: Path
) -> None:
    known = header(tmp_path, metadata("qwen2"))
    without = tokenizer_directory(known, tmp_path, Repositories().fetch)
    assert "chat_template" not in config_of(without)
    directory = tokenizer_directory(known, tmp_path, base.fetch)
    assert config_of(directory)["chat_template"] == TEMPLATE
    own = header(tmp_path, metadata("superbpe", **{"tokenizer.chat_template": "own"}))
    assert config_of(tokenizer_directory(own, tmp_path, base.fetch))["chat_template"] == "own"


def _slow_tokenizer(tmp_path: Path, **config: str) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    vocabulary = {chr(c): c - 33 for c in range(33, 127)} | {"Ġ": 94, "ab": 95, "<|end|>": 96}
    (model / "vocab.json").write_text(json.dumps(vocabulary))
    (model / "merges.txt").write_text("#version: 0.2\na b\n")
    own = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|end|>", "unk_token": None} | config
    (model / "tokenizer_config.json").write_text(json.dumps(own))
    return model


def test_a_slow_tokenizer_is_converted_once_with_its_directorys_template(tmp_path: Path) -> None:
    model = _slow_tokenizer(tmp_path, chat_template="of the configuration")
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


def test_one_that_is_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"tokenizer\.json"):
        directory_tokenizer(tmp_path, tmp_path / "cache")
    (tmp_path / "tokenizer.model").write_bytes(b"not sentencepiece")
    with pytest.raises(BadFileError, match="cannot be converted"):
        directory_tokenizer(tmp_path, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "tokenizers").iterdir())
