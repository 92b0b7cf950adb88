"""What endpoints answer about their models, read."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import UpstreamUnavailableError
from fleet.upstreams.discovery import MAX_ID_CHARACTERS, KnownModel, models_of
from tests.cases import each_case

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
)


@each_case(
    ("row", "known"),
    [
        ({"id": "gpt"}, KnownModel(id="gpt")),
        ({"id": "qwen", "max_model_len": 4096}, KnownModel(id="qwen", context_tokens=4096)),
        ({"id": "l", "meta": {"n_ctx": 512}}, KnownModel(id="l", context_tokens=512)),
        (
            {
                "id": "org/x",
                "context_length": 8192,
                "top_provider": {"max_completion_tokens": 1024},
                "pricing": {"prompt": "0.00000015", "completion": "0.0000006"},
            },
            KnownModel(
                id="org/x",
                context_tokens=8192,
                max_output_tokens=1024,
                input_price_micro_usd=150_000,
                output_price_micro_usd=600_000,
            ),
        ),
        (
            {"id": "a", "limit": {"context": 7, "output": 3}},
            KnownModel(id="a", context_tokens=7, max_output_tokens=3),
        ),
        ({"id": "b", "max_model_len": True, "pricing": {"prompt": "NaN"}}, KnownModel(id="b")),
        ({"id": "c", "max_model_len": -1, "pricing": {"prompt": "1e99"}}, KnownModel(id="c")),
    ],
)
def test_limits_and_prices_are_read_where_they_are_named(
    row: dict[str, Any], known: KnownModel
) -> None:
    assert models_of({"data": [row]}) == [known]


def test_ollama_and_doubles_and_what_is_no_name() -> None:
    rows = [{"name": "b:1"}, {"model": "a"}, {"id": "a"}, {"id": "two words"}, {"id": 7}, "x", {}]
    rows.append({"id": "x" * (MAX_ID_CHARACTERS + 1)})
    assert [model.id for model in models_of({"models": rows})] == ["a", "b:1"]


@given(JSON)
def test_any_json_is_a_list_or_refused(body: Any) -> None:
    for shaped in (body, {"data": body}, {"data": [body]}, {"data": [{"id": "x", "limit": body}]}):
        try:
            models_of(shaped)
        except UpstreamUnavailableError as error:
            assert "not understood" in str(error)
