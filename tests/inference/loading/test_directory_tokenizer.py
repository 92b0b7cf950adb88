from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from inference.loading.directory_tokenizer import directory_tokenizer
from inference.protocol.load_errors import BadFileError, MissingFileError
from inference.text.templates.template_sources import find_templates
from tests.cases import each_case


def _slow_tokenizer(tmp_path: Path, **config: str) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    vocabulary = {chr(c): c - 33 for c in range(33, 127)} | {"Ġ": 94, "ab": 95, "<|end|>": 96}
    (model / "vocab.json").write_text(json.dumps(vocabulary))
    (model / "merges.txt").write_text("#version: 0.2\na b\n")
    own = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|end|>", "unk_token": None} | config
    (model / "tokenizer_config.json").write_text(json.dumps(own))
    return model


@each_case("name", ["chat_template.jinja", "chat_template.json"])
def test_a_converted_one_keeps_its_directorys_template(tmp_path: Path, name: str) -> None:
    model = _slow_tokenizer(tmp_path, chat_template="of the configuration")
    own = "own" if name.endswith(".jinja") else json.dumps({"chat_template": "own"})
    (model / name).write_text(own)
    converted = directory_tokenizer(model, tmp_path / "cache")
    assert find_templates(converted, None).default == "own"
    (model / name).unlink()
    converted = directory_tokenizer(model, tmp_path / "cache")
    assert find_templates(converted, None).default == "of the configuration"


def test_a_slow_tokenizer_is_converted_once(tmp_path: Path) -> None:
    model = _slow_tokenizer(tmp_path)
    converted = directory_tokenizer(model, tmp_path / "cache")

    assert converted.is_relative_to(tmp_path / "cache" / "tokenizers")
    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    assert tokenizer.encode("ab!").tokens == ["ab", "!"]
    written = (converted / "tokenizer.json").stat().st_mtime_ns
    assert directory_tokenizer(model, tmp_path / "cache") == converted
    assert (converted / "tokenizer.json").stat().st_mtime_ns == written
    assert directory_tokenizer(converted, tmp_path) == converted, "it is used where it lies"


def test_one_that_is_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"tokenizer\.json"):
        directory_tokenizer(tmp_path, tmp_path / "cache")
    (tmp_path / "tokenizer.model").write_bytes(b"not sentencepiece")
    with pytest.raises(BadFileError, match="cannot be converted"):
        directory_tokenizer(tmp_path, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "tokenizers").iterdir())
