"""Thinking through the openai SDK: hidden unless asked for, separated whatever the model does."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe
from tests.live.sdk.asking import OSLO_CALLS, WEATHER, Ask

THOUGHT = "<think>\nIt is 6 times 7.\n</think>\n\nIt is 42."
NO_THINKING = "<think>\n\n</think>"
"""What the template puts into the prompt when thinking is off."""


def reasoning(answer: ChatCompletion) -> str | None:
    message = answer.choices[0].message
    found: str | None = (message.model_extra or {}).get("reasoning_content")
    return found


def test_hidden_by_default(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("six by seven, quietly", THOUGHT)
    answer = ask("six by seven, quietly")
    assert (answer.choices[0].message.content or "").strip() == "It is 42."
    assert reasoning(answer) is None
    assert hermes.received("six by seven, quietly")[-1].prompt.rstrip().endswith(NO_THINKING)
    assert answer.usage is not None
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert details.reasoning_tokens is not None
    assert 10 < details.reasoning_tokens < answer.usage.completion_tokens


def test_shown_when_asked_for(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("six by seven, aloud", THOUGHT)
    answer = ask("six by seven, aloud", extra_body={"include_reasoning": True})
    assert (answer.choices[0].message.content or "").strip() == "It is 42."
    assert (reasoning(answer) or "").strip() == "It is 6 times 7."
    assert NO_THINKING not in hermes.received("six by seven, aloud")[-1].prompt


def test_hidden_thoughts_have_no_logprobs(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("six by seven, likely", THOUGHT)
    choice = ask("six by seven, likely", logprobs=True).choices[0]
    assert choice.logprobs is not None
    reported = b"".join(bytes(token.bytes or []) for token in choice.logprobs.content or [])
    assert "6 times 7" not in reported.decode()
    assert reported.decode().strip() == "It is 42."


def test_inlined_for_bridges(ask: Ask, hermes: ScriptedModel) -> None:
    hermes.answers("six by seven, inline", THOUGHT)
    answer = ask("six by seven, inline", extra_headers={"x-include-thinking": "true"})
    content = answer.choices[0].message.content or ""
    assert content.startswith("<think>")
    thought, _, reported = content.removeprefix("<think>").partition("</think>")
    assert (thought.strip(), reported.strip()) == ("It is 6 times 7.", "It is 42.")
    assert reasoning(answer) is None


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "minimal"}, False),
        ({"reasoning_effort": "high"}, True),
        ({"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}, True),
        (
            {
                "reasoning_effort": "high",
                "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
            },
            False,
        ),
    ],
)
def test_whether_the_template_is_asked_to_think(
    ask: Ask, hermes: ScriptedModel, fields: dict[str, Any], thinks: bool
) -> None:
    hermes.answers("think or not", "Well.")
    ask("think or not", **fields)
    assert (NO_THINKING not in hermes.received("think or not")[-1].prompt) == thinks


def test_a_block_that_the_prompt_opens(ask: Ask, scripted_server: ScriptedServe) -> None:
    model = scripted_server.models["opened-thinking"]
    model.answers("half a block", "It is 6 times 7.\n</think>\n\nIt is 42.")
    answer = ask("half a block", model=model.name, extra_body={"include_reasoning": True})
    assert (reasoning(answer) or "").strip() == "It is 6 times 7."
    assert (answer.choices[0].message.content or "").strip() == "It is 42."


def test_thinking_before_a_call(ask: Ask, hermes: ScriptedModel) -> None:
    """A call in the thoughts is a thought; the thoughts go back with the history."""
    thought = f"<think>\nShould I {OSLO_CALLS['hermes']}?\n</think>\n"
    hermes.answers("think, then call", thought + OSLO_CALLS["hermes"])
    hermes.answers("sunny all week", "Sunny.")
    shown = {"include_reasoning": True}
    question = {"role": "user", "content": "think, then call"}
    asked = ask(messages=[question], tools=[WEATHER], extra_body=shown)
    message = asked.choices[0].message
    assert "Should I" in (reasoning(asked) or "")
    assert len(message.tool_calls or []) == 1
    (call,) = message.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny all week"}
    reported = ask(messages=[question, message, result], tools=[WEATHER])
    assert reported.choices[0].message.content == "Sunny."
    assert "Should I" in hermes.received("sunny all week")[-1].prompt


def test_required_calls_may_be_thought_about(ask: Ask, hermes: ScriptedModel) -> None:
    """The grammar holds from the end of the thinking block on."""
    hermes.answers("think, then you must", f"<think>\nHm.\n</think>\n\n{OSLO_CALLS['hermes']}")
    asked = ask(
        "think, then you must",
        tools=[WEATHER],
        tool_choice="required",
        extra_body={"include_reasoning": True},
    )
    assert (reasoning(asked) or "").strip() == "Hm."
    assert len(asked.choices[0].message.tool_calls or []) == 1
