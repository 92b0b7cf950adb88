"""How a request is sampled: its own words, the model's, and the neutral ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.neuron.errors import RequestRefusedError
from inference.neuron.text.prompts import used_sampling
from inference.protocol.events import UsedSampling
from inference.protocol.generation import (
    TextInput,
)
from tests.cases import each_case
from tests.inference.neuron.model_texts import model_text
from tests.inference.neuron.prepared import prepared


def test_sampling_is_the_clients_then_the_models_then_neutral(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir, generation_defaults={"temperature": 0.6, "top_k": 20})
    params = prepared(text, TextInput(texts=["x"]), temperature=0.0).params
    assert params.temperature == 0.0
    assert params.top_k == 20
    assert params.top_p == 1.0
    assert params.repetition_penalty == 1.0
    used = used_sampling(prepared(text, TextInput(texts=["x"]), frequency_penalty=0.5).params)
    assert used == UsedSampling(
        temperature=0.6, top_p=1.0, presence_penalty=0.0, frequency_penalty=0.5
    )


def test_stop_token_ids_hold_eos_unless_it_is_ignored(byte_level_dir: Path) -> None:
    text = model_text(byte_level_dir)
    asked = {"stop_token_ids": [9, 2]}
    assert prepared(text, TextInput(texts=["x"]), **asked).params.stop_token_ids == [2, 9]
    ignoring = prepared(text, TextInput(texts=["x"]), ignore_eos=True, stop_token_ids=[9])
    assert ignoring.params.stop_token_ids == [9]


@each_case("field", [{"logit_bias": {5000: 1.0}}, {"stop_token_ids": [5000]}])
def test_token_ids_outside_the_vocabulary_are_refused(
    byte_level_dir: Path, field: dict[str, object]
) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        prepared(model_text(byte_level_dir), TextInput(texts=["x"]), **field)
    assert refused.value.failure.param == next(iter(field))
