"""What answers are held to in tests that care for other things."""

from __future__ import annotations

from inference.gateway.answer_check import AnswerCheck, UsageBounds
from inference.protocol.generation import GenerationRequest, TextInput


def any_answer() -> AnswerCheck:
    """Of one choice, as long as it likes."""
    request = GenerationRequest(model="tiny", input=TextInput(texts=["Hi"]))
    return AnswerCheck(request, UsageBounds(prompt_tokens=10**6, output_tokens=10**6))
