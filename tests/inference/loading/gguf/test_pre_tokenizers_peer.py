"""Every rule that splits text, against llama.cpp's own on one vocabulary: the pieces of up to eight
bytes of the texts below, so that a cut elsewhere makes other tokens."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import pre_tokenizers

from inference.loading.gguf.pre_tokenizers import PRE_TOKENIZERS
from inference.loading.gguf.tokenizer import convert_tokenizer
from tests.inference.llama_cpp_peer import llama_cpp, quiet_library
from tests.inference.loading.gguf.test_tokenizer import BYTE_ALPHABET

__all__ = ["quiet_library"]

TEXTS = (
    "Don't add 12345+x   y\n\nz",
    "I'LL we'Ve they're he'd I'm it's o'clock 'Tis DON'T",
    "1 12 123 1234 12345 123456 1234567 3.14159 1,234,567 \u0663\u0664\u0665 \u00bd\u00b2",
    "a  b   c    d\t\te \t f\r\n\r\ng\n \n h  \n",
    "def f(x_1, *args):\n    return x_1[0] != 'a'  # no\n\tpass\n",
    "世界カタbc (foo)Bar 한국어 텍스트 ひらがな漢字123",
    "Привет мир! HTMLParser camelCase XMLHttpRequest iPhone ÀÉÎõü straße",
    "!!!??? ... --> <=> /path/to/file //comment\n/x $100 €5 £3 ~^`|",
    "עברית العربية ไทย",
    "😀👍🏽 ok👩‍👩‍👧 x",
    " leading and trailing  ",
    "(a.b),c;d:e-f_g \u2026\u3002\uff0c\u3001 a.b \u3002",
    "tabs\tand\u00a0nbsp\u3000wide",
)
"""They have no combining marks, which some of llama.cpp's rules leave out of words and the models'
own take in, and are composed, since it does not compose text."""
OURS_ALONE = {"gpt2"}
LONGEST = 8


def spelled(text: str) -> str:
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return spelling.pre_tokenize_str(text)[0][0]


def metadata(pre: str) -> dict[str, Any]:
    found = {
        spelling[start : start + length]
        for spelling in map(spelled, TEXTS)
        for length in range(2, LONGEST + 1)
        for start in range(len(spelling) - length + 1)
    }
    pieces = sorted(found, key=lambda piece: (len(piece), piece))
    tokens = [*BYTE_ALPHABET, *pieces, "<|end|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [3],
        "tokenizer.ggml.merges": [f"{piece[:-1]} {piece[-1]}" for piece in pieces],
        "tokenizer.ggml.bos_token_id": len(tokens) - 1,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    }


def write(path: Path, vocabulary: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(vocabulary["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(vocabulary["tokenizer.ggml.pre"])
    writer.add_token_list(vocabulary["tokenizer.ggml.tokens"])
    writer.add_token_types(vocabulary["tokenizer.ggml.token_type"])
    writer.add_token_merges(vocabulary["tokenizer.ggml.merges"])
    writer.add_bos_token_id(vocabulary["tokenizer.ggml.bos_token_id"])
    writer.add_eos_token_id(vocabulary["tokenizer.ggml.eos_token_id"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def peer_ids(path: Path) -> tuple[list[list[int]], bool]:
    """The token ids of every text, and whether texts begin with bos."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"llama.cpp does not load {path.name}"
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    room = (llama_cpp.llama_token * 4096)()
    ids = []
    for text in TEXTS:
        data = text.encode()
        count = llama_cpp.llama_tokenize(
            vocabulary, ctypes.c_char_p(data), len(data), room, len(room), False, False
        )
        ids.append(list(room[:count]))
    begins = bool(llama_cpp.llama_vocab_get_add_bos(vocabulary))
    llama_cpp.llama_model_free(model)
    return ids, begins


@pytest.mark.parametrize("pre", sorted(set(PRE_TOKENIZERS) - OURS_ALONE))
def test_the_same_ids(tmp_path: Path, pre: str) -> None:
    vocabulary = metadata(pre)
    path = tmp_path / "vocabulary.gguf"
    write(path, vocabulary)
    tokenizer, config = convert_tokenizer(vocabulary)
    ours = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert (ours, config["add_bos_token"]) == peer_ids(path)
