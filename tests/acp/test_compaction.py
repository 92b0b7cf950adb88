"""The parts left out of a conversation that does not fit, and in which order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from helexa_acp.compaction import (
    UNBOUNDED,
    budget_tokens,
    can_shrink,
    project,
    text_tokens,
    turn_tokens,
    window_for,
)
from helexa_acp.history import (
    AssistantTurn,
    Image,
    Text,
    ToolCall,
    ToolResult,
    Turn,
    UserTurn,
)

LONG = "x" * 3500


def user_turn(text: str) -> UserTurn:
    return UserTurn((Text(text),))


def called(name: str, text: str = "") -> AssistantTurn:
    return AssistantTurn(text=text, calls=(ToolCall(name, "read_file", {"path": name}),))


def result(name: str, text: str = LONG) -> ToolResult:
    return ToolResult(call_id=name, name="read_file", parts=(Text(text),))


def conversation(num_rounds: int) -> list[Turn]:
    turns: list[Turn] = [user_turn(LONG)]
    for i in range(num_rounds):
        turns += [called(f"c{i}", LONG), result(f"c{i}")]
    return turns


def test_the_rule_for_tokens() -> None:
    assert text_tokens("") == 8
    assert text_tokens("x" * 35) == 18
    assert turn_tokens(UserTurn((Image("image/png", "AAAA"),))) == 8 + 512


def test_the_budget() -> None:
    assert budget_tokens(8192, None) == 8192 - 2048 - 512
    assert budget_tokens(8192, 1000) == 8192 - 1000 - 512
    assert budget_tokens(1000, 4000) == 250, "answers do not take all of it"
    assert budget_tokens(None, 1000) == UNBOUNDED
    for budget in (100, 3000):
        assert budget_tokens(window_for(budget, 1000), 1000) == budget


def test_what_fits_is_left_alone() -> None:
    turns = conversation(3)
    kept = project(turns, budget=100_000, fixed_tokens=0)
    assert kept.turns == tuple(turns)


def test_the_oldest_results_go_first() -> None:
    turns = conversation(4)
    all_tokens = project(turns, budget=UNBOUNDED, fixed_tokens=0).estimated_tokens
    kept = project(turns, budget=all_tokens - 1500, fixed_tokens=0)
    assert [isinstance(t, ToolResult) and t.parts != result("").parts for t in kept.turns] == [
        *(False, False, True, False, True),
        *(False,) * 4,
    ]
    assert kept.estimated_tokens <= all_tokens - 1500


def test_then_what_the_assistant_wrote() -> None:
    """Prompts, short results and the prompt under way stay, and calls keep their results."""
    short = result("c", "y" * 255)
    turns = [*conversation(4), called("c"), short, user_turn(LONG), called("d"), result("d")]
    least = project(turns[:-3], budget=0, fixed_tokens=0).estimated_tokens
    kept = project(turns, budget=least + 2200, fixed_tokens=0)
    assert kept.turns[0] == turns[0]
    assert kept.turns[10:] == tuple(turns[10:])
    elided = kept.turns[1]
    assert isinstance(elided, AssistantTurn)
    assert elided.calls == turns[1].calls  # type: ignore[union-attr]
    assert "left out" in elided.text


def test_then_earlier_prompts_with_all_that_followed_them() -> None:
    latest = [user_turn(LONG), called("d"), result("d")]
    turns = [*conversation(1), user_turn("b"), called("c"), result("c", "short"), *latest]
    kept = project(turns, budget=2300, fixed_tokens=0)
    mark = Text("[3 earlier turns were left out]")
    assert kept.turns == (UserTurn((mark, Text("b"))), *turns[4:])
    kept = project(turns, budget=kept.estimated_tokens - 1, fixed_tokens=0)
    mark = Text("[6 earlier turns were left out]")
    assert kept.turns == (UserTurn((mark, Text(LONG))), *latest[1:])


def test_the_latest_results_last() -> None:
    turns = [user_turn("a"), user_turn(LONG), called("d"), result("d")]
    kept = project(turns, budget=0, fixed_tokens=0)
    assert not can_shrink(kept)
    assert [type(turn) for turn in kept.turns] == [UserTurn, AssistantTurn, ToolResult]
    assert kept.turns[1] == turns[2]
    assert "left out" in str(kept.turns[2])


def test_the_endpoints_count_scales_the_estimate() -> None:
    turns = conversation(4)
    estimate = project(turns, budget=UNBOUNDED, fixed_tokens=0).estimated_tokens
    assert project(turns, budget=estimate, fixed_tokens=0).turns == tuple(turns)
    assert project(turns, budget=estimate, fixed_tokens=0, scale=1.2).turns != tuple(turns)


def test_what_compact_asked_for_goes_whatever_the_budget() -> None:
    turns = conversation(4)
    kept = project(turns, budget=UNBOUNDED, fixed_tokens=0, elided_before=3)
    assert kept.turns[3:] == tuple(turns[3:])


@given(
    st.lists(st.sampled_from(["user", "call", "result"]), max_size=30),
    st.integers(0, 20_000),
    st.floats(0.2, 3.0),
)
def test_it_ends_with_the_latest_prompt_and_all_that_followed_it(
    kinds: list[str], budget: int, scale: float
) -> None:
    makers = {
        "user": lambda: user_turn(LONG),
        "call": lambda: called("c", LONG),
        "result": lambda: result("c"),
    }
    turns: list[Turn] = [makers[kind]() for kind in kinds]
    kept = project(turns, budget=budget, fixed_tokens=100, scale=scale)
    num_kept = len(kept.turns)
    assert [type(turn) for turn in kept.turns] == [type(turn) for turn in turns][-num_kept:]
    prompts = [index for index, kind in enumerate(kinds) if kind == "user"]
    if num_kept < len(turns):
        assert isinstance(kept.turns[0], UserTurn)
        assert len(turns) - num_kept <= prompts[-1]
    assert kept.estimated_tokens == 100 + sum(map(turn_tokens, kept.turns))
    assert kept.estimated_tokens * scale <= budget or not can_shrink(kept)
