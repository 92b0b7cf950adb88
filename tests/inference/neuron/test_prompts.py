"""Prompts: what is tokenized with which special tokens, limits, and sampling as it is decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.neuron.errors import RequestRefusedError
from inference.neuron.model_text import ModelText
from inference.neuron.prompts import Prepared, echo_text, prepare
from inference.protocol.generation import (
    ChatInput,
    ChatMessage,
    GenerationRequest,
    TextInput,
    TokensInput,
)
from inference.protocol.load import LoadReport, LoadSpec
from inference.protocol.sampling import SamplingOptions


def _text(directory: Path, **changes: object) -> ModelText:
    report = {
        "architecture": "fake",
        "device": "cpu",
        "dtype": "float32",
        "num_parameters": 0,
        "weight_bytes": 0,
        "kv_bytes": 0,
        "num_kv_blocks": 1,
        "kv_block_tokens": 16,
        "context_tokens": 100,
        "vocab_size": 1000,
        "quantization": "",
        "compiled": "",
        "load_seconds": 0.0,
        "tokenizer_dir": str(directory),
        "eos_token_ids": [2],
    }
    spec = LoadSpec(job_id="j", model="m", source="fake:")
    return ModelText.load(spec, LoadReport(**(report | changes)))  # type: ignore[arg-type]


def _prepare(text: ModelText, prompt: object, **sampling: object) -> Prepared:
    options = SamplingOptions(**sampling)  # type: ignore[arg-type]
    return prepare(
        GenerationRequest(model="m", input=prompt, sampling=options),  # type: ignore[arg-type]
        text,
    )


def test_a_text_prompt_gets_its_bos_and_a_chat_renders_its_own(sentencepiece_dir: Path) -> None:
    text = _text(sentencepiece_dir)
    assert _prepare(text, TextInput(texts=["The"])).prompts[0][0] == 1
    chat = ChatInput(messages=[ChatMessage(role="user", content="The")])
    assert 1 not in _prepare(text, chat).prompts[0]


def test_a_chat_becomes_special_tokens(byte_level_dir: Path) -> None:
    text = _text(byte_level_dir)
    chat = ChatInput(messages=[ChatMessage(role="user", content="Hi")])
    prompt = _prepare(text, chat)
    assert prompt.prompts[0][0] == 1
    assert 2 in prompt.prompts[0]
    assert not prompt.continues_text


def test_token_prompts_are_verbatim_and_checked(byte_level_dir: Path) -> None:
    text = _text(byte_level_dir)
    assert _prepare(text, TokensInput(prompts=[[7, 8]])).prompts[0] == [7, 8]
    for bad in (1000, -1):
        with pytest.raises(RequestRefusedError) as refused:
            _prepare(text, TokensInput(prompts=[[bad]]))
        assert refused.value.failure.code == "bad_token_id"


def test_an_empty_prompt_is_refused(byte_level_dir: Path) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        _prepare(_text(byte_level_dir), TextInput(texts=[""]))
    assert refused.value.failure.code == "empty_prompt"


def test_the_rest_of_the_context_is_the_default_limit(byte_level_dir: Path) -> None:
    text = _text(byte_level_dir)
    assert _prepare(text, TokensInput(prompts=[[5] * 99])).params.max_tokens == 1
    assert _prepare(text, TokensInput(prompts=[[5] * 90]), max_tokens=10).params.max_tokens == 10


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(100, None), (90, 11)])
def test_what_does_not_fit_is_refused(
    byte_level_dir: Path, num_prompt: int, max_tokens: int | None
) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        _prepare(
            _text(byte_level_dir), TokensInput(prompts=[[5] * num_prompt]), max_tokens=max_tokens
        )
    assert refused.value.failure.code == "context_length_exceeded"


def test_sampling_is_the_clients_then_the_models_then_neutral(byte_level_dir: Path) -> None:
    text = _text(byte_level_dir, generation_defaults={"temperature": 0.6, "top_k": 20.0})
    params = _prepare(text, TextInput(texts=["x"]), temperature=0.0).params
    assert params.temperature == 0.0
    assert params.top_k == 20
    assert params.top_p == 1.0
    assert params.repetition_penalty == 1.0


def test_stop_token_ids_hold_eos_unless_it_is_ignored(byte_level_dir: Path) -> None:
    text = _text(byte_level_dir)
    asked = {"stop_token_ids": [9, 2]}
    assert _prepare(text, TextInput(texts=["x"]), **asked).params.stop_token_ids == [2, 9]
    ignoring = _prepare(text, TextInput(texts=["x"]), ignore_eos=True, stop_token_ids=[9])
    assert ignoring.params.stop_token_ids == [9]


@pytest.mark.parametrize("field", [{"logit_bias": {5000: 1.0}}, {"stop_token_ids": [5000]}])
def test_token_ids_outside_the_vocabulary_are_refused(
    byte_level_dir: Path, field: dict[str, object]
) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        _prepare(_text(byte_level_dir), TextInput(texts=["x"]), **field)
    assert refused.value.failure.param == next(iter(field))


def test_echo_is_the_clients_text_or_its_tokens_as_text(byte_level_dir: Path) -> None:
    text = _text(byte_level_dir)
    token_ids = text.tokenizer.encode("Straße", add_special_tokens=False)
    for prompt in (TextInput(texts=["Straße"]), TokensInput(prompts=[token_ids])):
        request = GenerationRequest(model="m", input=prompt, echo=True)
        assert echo_text(0, prepare(request, text), text, request) == "Straße"
