"""What a GGUF's own metadata lacks comes from the repository that it names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from inference.loading.gguf.header import GGUFHeader
from inference.loading.gguf.tokenizer import convert_tokenizer
from inference.loading.gguf.tokenizer_files import base_repositories, tokenizer_directory
from inference.protocol.load_errors import BadFileError, DownloadFailedError
from tests.cases import each_case

ALPHABET = [
    *(chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))),
    *(chr(256 + i) for i in range(68)),
]
TOKENS = [*ALPHABET, "ab", "<|end|>"]
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
    """Folders by repository name; others cannot be had."""

    def __init__(self, **folders: Path) -> None:
        self.folders = folders
        self.asked: list[str] = []

    def fetch(self, repo: str) -> Path:
        self.asked.append(repo)
        if repo not in self.folders:
            raise DownloadFailedError(f"{repo} cannot be had")
        return self.folders[repo]


@pytest.fixture
def header(tmp_path: Path) -> Callable[[dict[str, Any]], GGUFHeader]:
    def make(contents: dict[str, Any]) -> GGUFHeader:
        path = tmp_path / "model.gguf"
        path.write_bytes(json.dumps(contents).encode())
        size = path.stat().st_size
        return GGUFHeader(path=path, metadata=contents, tensors={}, data_offset=size)

    return make


@pytest.fixture
def base_folder(tmp_path: Path) -> Path:
    """The base repository: a tokenizer with the file's vocabulary, by a rule of its own."""
    folder = tmp_path / "base"
    folder.mkdir()
    tokenizer, config = convert_tokenizer(metadata("qwen2", **{"tokenizer.ggml.tokens": TOKENS}))
    tokenizer.save(str(folder / "tokenizer.json"))
    config |= {"chat_template": TEMPLATE, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@each_case(
    ("given", "expected"),
    [
        ({"general.source.repo_url": "https://huggingface.co/a/b/"}, ["a/b"]),
        ({"general.source.huggingface.repository": "a/b"}, ["a/b"]),
        ({"general.url": "https://example.org/a/b"}, []),
        ({"general.base_model.count": "two"}, []),
        (
            {
                "general.base_model.count": 2,
                "general.base_model.0.repo_url": "https://huggingface.co/a/b",
                "general.base_model.1.repo_url": "https://huggingface.co/c/d-1.5",
                "general.repo_url": "https://hf.co/c/d-1.5",
            },
            ["c/d-1.5", "a/b"],
        ),
    ],
)
def test_repositories_that_the_metadata_names(given: dict[str, Any], expected: list[str]) -> None:
    assert base_repositories(given) == expected


def test_an_unknown_rule_takes_the_tokenizer_of_the_base_and_keeps_it(
    header: Any, base_folder: Path, tmp_path: Path
) -> None:
    repositories = Repositories(**{"org/base": base_folder})
    contents = metadata("superbpe", **{"tokenizer.ggml.add_bos_token": False})
    directory = tokenizer_directory(header(contents), tmp_path, repositories.fetch)
    written = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert written.encode("ab<|end|>").ids == [256, 257]
    config = json.loads((directory / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == 512, "a key that the file lacks is the base's"
    assert (config["add_bos_token"], config["eos_token"]) == (False, "<|end|>")
    assert config["chat_template"] == TEMPLATE
    repositories.asked.clear()
    assert tokenizer_directory(header(contents), tmp_path, repositories.fetch) == directory
    assert repositories.asked == [], "converted once"


@pytest.mark.parametrize("lacking", ["a known rule", "a vocabulary"])
def test_a_downloaded_repository_falls_back_to_its_name_without_gguf(
    lacking: str, header: Any, base_folder: Path, tmp_path: Path
) -> None:
    contents = {} if lacking == "a vocabulary" else metadata("superbpe")
    contents.pop("general.base_model.count", None)
    snapshot = tmp_path / "models--org--base-GGUF" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    moved = header(contents).path.rename(snapshot / "model.gguf")
    repositories = Repositories(**{"org/base": base_folder})
    found = replace(header(contents), path=moved)
    directory = tokenizer_directory(found, tmp_path / "cache", repositories.fetch)
    assert repositories.asked[0] == "org/base"
    config = json.loads((directory / "tokenizer_config.json").read_text())
    assert config["chat_template"] == TEMPLATE


def test_the_files_own_template_wins(header: Any, base_folder: Path, tmp_path: Path) -> None:
    contents = metadata("superbpe", **{"tokenizer.chat_template": "own"})
    fetch = Repositories(**{"org/base": base_folder}).fetch
    directory = tokenizer_directory(header(contents), tmp_path, fetch)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    assert config["chat_template"] == "own"


def test_another_vocabulary_is_refused_by_its_first_token(
    header: Any, base_folder: Path, tmp_path: Path
) -> None:
    tokens = [*ALPHABET, "<|end|>", "ab", "[PAD258]"]
    contents = metadata("superbpe", **{"tokenizer.ggml.tokens": tokens})
    fetch = Repositories(**{"org/base": base_folder}).fetch
    with pytest.raises(BadFileError, match=r"token 256 is '<\|end\|>', which there is 257.*beside"):
        tokenizer_directory(header(contents), tmp_path, fetch)


def test_what_was_tried_is_reported(header: Any, tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match=r"'superbpe'.*org/base cannot be had.*beside the file"):
        tokenizer_directory(header(metadata("superbpe")), tmp_path, Repositories().fetch)
    nameless = metadata("superbpe", **{"general.base_model.count": 0})
    with pytest.raises(BadFileError, match="names no repository"):
        tokenizer_directory(header(nameless), tmp_path, Repositories().fetch)


def test_a_missing_template_is_the_bases_or_asked_for_again(
    header: Any, base_folder: Path, tmp_path: Path
) -> None:
    known = header(metadata("qwen2"))
    without = tokenizer_directory(known, tmp_path, Repositories().fetch)
    assert "chat_template" not in json.loads((without / "tokenizer_config.json").read_text())
    fetch = Repositories(**{"org/base": base_folder}).fetch
    directory = tokenizer_directory(known, tmp_path, fetch)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    assert config["chat_template"] == TEMPLATE
