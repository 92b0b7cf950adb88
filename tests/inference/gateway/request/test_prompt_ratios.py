"""The reservation for a prompt, estimated from the prompts that were counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.request.token_bounds import PromptRatios


def test_a_text_is_reserved_near_what_the_model_makes_of_it() -> None:
    ratios = PromptRatios()
    assert ratios.near("tiny", 363) == 182
    ratios.observe("tiny", 363, 81)
    assert 81 < ratios.near("tiny", 363) < 110
    assert ratios.near("tiny", 40_000) == 20_000, "another size"
    assert ratios.near("other", 363) == 182, "another tokenizer"


def test_the_longest_prompt_of_a_size_counts_until_it_is_forgotten() -> None:
    ratios = PromptRatios()
    ratios.observe("tiny", 10_000, 8000)
    ratios.observe("tiny", 10_000, 2600)
    assert ratios.near("tiny", 10_000) > 9000
    for _ in range(1000):
        ratios.observe("tiny", 10_000, 2600)
    assert 2600 < ratios.near("tiny", 10_000) < 3300


@given(
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(-5, 100_000)), max_size=20),
    st.integers(0, 200_000),
)
def test_it_is_never_more_than_the_sure_bound(seen: list[tuple[int, int]], bound: int) -> None:
    ratios = PromptRatios()
    for text_bound, num_tokens in seen:
        ratios.observe("tiny", text_bound, num_tokens)
    assert bound / 4 <= ratios.near("tiny", bound) <= bound
