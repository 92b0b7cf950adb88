"""What the scripted model answers each client: one scene for each feature that is tried.

A client's program asks the question of a scene; the model's answer is written here once for all of
them. ``programs`` know the questions by heart: they are other languages' files.
"""

from __future__ import annotations

from tests.live.scripted.model import ScriptedModel

SECRET = "The word is heron."
"""The text of the note that agents are to read."""

HERON = "It says heron."
SOUP_SCHEMA = {
    "type": "object",
    "properties": {"dish": {"type": "string"}},
    "required": ["dish"],
}
DISH = '{"dish": "soup", "steps": ["boil", "serve"]}'


def call_of(tool: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {arguments}}}\n</tool_call>'


DISH_TOOLS = ("Dish", "PartialDish", "final_result", "json", "json_tool_call")
"""What clients name a tool that stands for an object."""

SCENES = {
    "Say hello": "Hello there.",
    "What is two and two": "<think>\nTwo and two.\n</think>\n\nFour.",
    "A dish as JSON": DISH,
    **{f"A dish by {tool}": call_of(tool, DISH) for tool in DISH_TOOLS},
    "weather in Oslo": "One moment.\n" + call_of("get_weather", '{"city": "Oslo"}'),
    "snow at noon": "It snows in Oslo.",
}
"""Later ones count before earlier ones: a conversation continues with its tool's result."""


def rehearse(model: ScriptedModel) -> None:
    for when, answer in SCENES.items():
        model.answers(when, answer)


def rehearse_agent(model: ScriptedModel, question: str, tool: str, arguments: str) -> None:
    """The agent's question is answered by a call of ``tool``; what it then reads, by the word."""
    thought = "<think>\nRead it.\n</think>\n\nLet me look.\n"
    model.answers(question, thought + call_of(tool, arguments))
    model.answers(SECRET.removesuffix("."), HERON)
