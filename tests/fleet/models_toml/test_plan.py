"""The changes of an import, and that an exported file changes nothing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleet.catalogue import CatalogueSettings
from fleet.models_toml import CatalogueState, plan_import, read_document, write_document
from tests.cases import each_case

TINY = CatalogueSettings(source="pypi:tiny", max_context_tokens=512)
STATE = CatalogueState(models={"other": TINY, "tiny": TINY}, aliases={"nick": "tiny"})
TEXT = """
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
    assert lines(TEXT) == [
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
        plan_import(read_document(TEXT), state, prune=prune).digest
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


counts = st.none() | st.integers(1, 2**31 - 1)
prices = st.integers(0, 10**15 - 1)


@st.composite
def settings(draw: st.DrawFn) -> CatalogueSettings:
    is_priced = draw(st.booleans())
    min_replicas = draw(st.integers(0, 3))
    return CatalogueSettings(
        source="path:/" + draw(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)),
        file=draw(st.none() | st.sampled_from(["Q4_K_M", 'a "b" \\ c.gguf'])),
        description=draw(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
        ),
        enabled=draw(st.booleans()),
        quantization=draw(st.sampled_from(["auto", "none", "q8"])),
        max_context_tokens=draw(counts),
        max_prefill_s=draw(counts),
        idle_ttl_s=draw(counts),
        pinned_on=tuple(draw(st.sets(st.sampled_from(["a", "B.c", "d-1"])))),
        min_replicas=min_replicas,
        max_replicas=min_replicas + draw(st.integers(1, 3)),
        input_price_micro_usd=draw(prices) if is_priced else None,
        cached_input_price_micro_usd=draw(st.none() | prices) if is_priced else None,
        output_price_micro_usd=draw(prices) if is_priced else None,
    )


@given(tiny=settings(), other=settings())
def test_what_was_exported_changes_nothing(
    tiny: CatalogueSettings, other: CatalogueSettings
) -> None:
    state = CatalogueState(
        models={"tiny": tiny, "other": other}, aliases={"gpt-4o": "tiny", "a/B:c@d": "other"}
    )
    document = read_document(write_document(state))
    assert {model.name: model.settings for model in document.models} == state.models
    plan = plan_import(document, state, prune=True)
    assert plan.is_empty and plan.notes == ()
