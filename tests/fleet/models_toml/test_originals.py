"""A file of forty entries in the shapes that the original"s users have: all of them import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet import selectors, services
from fleet.catalogue import CatalogueSettings
from fleet.models_toml import plan_import, read_document, write_document
from fleet.models_toml.reading import ModelsTomlError
from metering.actor import COMMAND

TEXT = (Path(__file__).parent / "originals.toml").read_text()
TWO = {"min_devices": 2, "tensor_parallel": 2}
EXPECTED: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen/Qwen3.6-27B": (
        "qwen3.6-27b",
        {
            "quantization": "q6",
            "max_context_tokens": 101376,
            "max_output_tokens": 8192,
            "min_devices": 2,
            "tensor_parallel": 2,
            "min_device_vram_mb": 15000,
            "vram_mb": 26000,
            "pinned_on": ("beast",),
            "input_price_micro_usd": 150000,
            "cached_input_price_micro_usd": 15000,
            "output_price_micro_usd": 600000,
        },
    ),
    "Qwen/Qwen3.6-35B-A3B": (
        "qwen3.6-35b-a3b",
        {"quantization": "q4", "min_devices": 2, "tensor_parallel": 2, "vram_mb": 22000},
    ),
    "Qwen/Qwen3-32B": ("qwen3-32b", {"quantization": "q5", "min_devices": 4, "tensor_parallel": 4}),
    "Qwen/Qwen3-14B": ("qwen3-14b", {"quantization": "q8"} | TWO),
    "Qwen/Qwen3-8B": ("qwen3-8b", {"dtype": "bfloat16"} | TWO),
    "Qwen/Qwen3-4B": (
        "qwen-qwen3-4b",
        {"dtype": "float16"} | TWO,
    ),
    "Qwen/Qwen3-1.7B": ("qwen3-1.7b", {"dtype": "float32"} | TWO),
    "Qwen/Qwen3-0.6B": ("qwen3-0.6b", TWO),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (
        "qwen3-next-80b-a3b-instruct",
        {"quantization": "q4", "min_devices": 4, "tensor_parallel": 4},
    ),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": (
        "qwen3-30b-a3b-instruct-2507",
        {"quantization": "q4"} | TWO,
    ),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": (
        "qwen3-coder-30b-a3b-instruct",
        {"quantization": "q5"} | TWO,
    ),
    "Qwen/Qwen3-VL-8B-Instruct": (
        "qwen3-vl-8b-instruct",
        {"quantization": "q5"} | TWO,
    ),
    "Qwen/Qwen3-VL-4B-Instruct": (
        "qwen3-vl-4b-instruct",
        {"quantization": "q8"} | TWO,
    ),
    "meta-llama/Llama-3.3-70B-Instruct": (
        "llama-3.3-70b-instruct",
        {"quantization": "q4"} | TWO,
    ),
    "meta-llama/Llama-3.1-8B-Instruct": (
        "llama-3.1-8b-instruct",
        {"quantization": "q4"} | TWO,
    ),
    "meta-llama/Llama-3.2-3B-Instruct": (
        "llama-3.2-3b-instruct",
        {"quantization": "q8"} | TWO,
    ),
    "unsloth/Qwen3-8B": ("unsloth-qwen3-8b", {"quantization": "q8"}),
    "mistralai/Ministral-8B-Instruct-2410": ("ministral-8b-instruct-2410", {"quantization": "q6"}),
    "HuggingFaceTB/SmolLM3-3B": ("smollm3-3b", {"quantization": "q4"}),
    "ibm-granite/granite-3.3-8b-instruct": ("granite-3.3-8b-instruct", {"quantization": "q5"}),
    "microsoft/Phi-4-mini-instruct": ("phi-4-mini-instruct", {"dtype": "bfloat16"}),
    "google/gemma-3-4b-it": ("gemma-3-4b-it", {"dtype": "float16"}),
    "allenai/OLMo-2-1124-7B-Instruct": ("olmo-2-1124-7b-instruct", {}),
    "unsloth/Qwen3-8B-GGUF": ("qwen3-8b-gguf", {"file": "Q4_K_M"}),
    "bartowski/Llama-3.2-3B-Instruct-GGUF": (
        "llama-3.2-3b-instruct-gguf",
        {"file": "q4_k_m", "residency_priority": 500},
    ),
    "unsloth/Qwen3-4B-GGUF": ("qwen3-4b-gguf", {"file": "q6k"}),
    "unsloth/Qwen3-1.7B-GGUF": ("qwen3-1.7b-gguf", {"file": "q5k"}),
    "unsloth/Qwen3-0.6B-GGUF": ("qwen3-0.6b-gguf", {"file": "q8_0"}),
    "unsloth/Qwen3-14B-GGUF": ("qwen3-14b-gguf", {"file": "UD-Q4_K_XL"}),
    "unsloth/Qwen3-32B-GGUF": ("qwen3-32b-gguf", {"file": "IQ4_XS"}),
    "bartowski/Qwen_Qwen3-8B-GGUF": ("qwen_qwen3-8b-gguf", {"file": "F16"}),
    "ggml-org/gemma-3-4b-it-GGUF": ("gemma-3-4b-it-gguf", {"file": "q4k"}),
    "lmstudio-community/Qwen3-8B-GGUF": ("lmstudio-community-qwen3-8b-gguf", {"file": "Q8_0"}),
    "TheBloke/Mistral-7B-Instruct-v0.2-GGUF": ("mistral-7b-instruct-v0.2-gguf", {}),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": (
        "deepseek-r1-distill-qwen-7b",
        {"pinned_on": ("beast", "gpu-2.lan"), "residency_priority": 1000},
    ),
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": ("deepseek-r1-0528-qwen3-8b", {}),
    "openai/gpt-oss-20b": (
        "gpt-oss-20b",
        {
            "max_context_tokens": 131072,
            "max_output_tokens": 16384,
            "input_price_micro_usd": 0,
            "output_price_micro_usd": 0,
        },
    ),
    "nvidia/Nemotron-Nano-9B-v2": (
        "nemotron-nano-9b-v2",
        {
            "max_context_tokens": 32768,
            "max_output_tokens": 4096,
            "input_price_micro_usd": 40000,
            "output_price_micro_usd": 160000,
        },
    ),
    "zai-org/GLM-4.5-Air": (
        "glm-4.5-air",
        {
            "quantization": "q4",
            "min_devices": 4,
            "tensor_parallel": 4,
            "min_device_vram_mb": 23000,
            "residency_priority": 0,
        },
    ),
    "Tongyi-MAI/Qwen3-8B": (
        "tongyi-mai-qwen3-8b",
        {
            "input_price_micro_usd": 0,
            "cached_input_price_micro_usd": 10000,
            "output_price_micro_usd": 0,
        },
    ),
}
"""The name here of each id, and the settings that differ from the defaults."""


def test_every_entry_is_what_it_was_there() -> None:
    document = read_document(TEXT)
    assert document.problems == () and len(document.models) == len(EXPECTED) == 40
    for model in document.models:
        name, settings = EXPECTED[model.id]
        assert model.name == name
        assert model.settings == CatalogueSettings(source=f"huggingface:{model.id}", **settings)
    assert document.aliases == {id_: name for id_, (name, _) in EXPECTED.items()} | {
        "helexa/large": "qwen3.6-27b",
        "helexa/small": "qwen3-8b",
        "helexa/fast": "unsloth-qwen3-8b",
        "qwen": "lmstudio-community-qwen3-8b-gguf",
        "qwen3-4b": "qwen3-4b-gguf",
    }


@pytest.mark.django_db
def test_it_is_imported_once_and_exported_as_the_same() -> None:
    for name in ("beast", "gpu-2.lan"):
        services.neuron_expect(actor=COMMAND, neuron_name=name)
    document = read_document(TEXT)
    services.catalogue_import(actor=COMMAND, document=document)
    state = selectors.catalogue_state()
    assert len(state.models) == 40 and len(state.aliases) == 45
    again = plan_import(document, state, prune=True)
    assert again.is_empty and len(again.unchanged) == 40
    assert plan_import(read_document(write_document(state)), state, prune=True).is_empty


BROKEN = """
[[models]]
id = "Org/Fine"

[[models]]
id = "Org/Broken"
contxt = 3

[[models]]
id = "Org/Other"
source = "mirror"

[aliases]
nice = "Org/Fine"
fine = "Org/Fine"
broken = "Org/Broken"
dead = "Org/Missing"
"""


@pytest.mark.django_db
def test_a_refused_entry_is_named_with_its_line_and_the_others_are_shown() -> None:
    services.catalogue_model_create(actor=COMMAND, name="broken", source="pypi:broken")
    before = selectors.catalogue_state()
    plan = plan_import(read_document(BROKEN), before, prune=True)
    shown = list(plan.lines())
    assert shown[:4] == [
        "+ model fine",
        '    source = "huggingface:Org/Fine"',
        "+ alias Org/Fine = fine",
        "+ alias nice = fine",
    ]
    assert [(problem.line, problem.entry) for problem in plan.problems] == [
        (7, "Org/Broken"),
        (11, "Org/Other"),
        (17, "[aliases]"),
    ]
    assert [line[:8] for line in shown[-3:]] == ["x line 7", "x line 1", "x line 1"]
    with pytest.raises(ModelsTomlError, match="contxt"):
        services.catalogue_import(actor=COMMAND, document=read_document(BROKEN), prune=True)
    assert selectors.catalogue_state() == before
