"""How a program reports what it tried: one JSON object a line."""

import asyncio
import inspect
import json
import os

from pydantic import BaseModel

URL = os.environ["HELEXA_URL"]
BASE_URL = f"{URL}/v1"
MODEL = "hermes"
SMALL_CONTEXT = "small"
API_KEY = "none"
SOUP = {"dish": "soup", "steps": ["boil", "serve"]}
LONG = "word " * 8000


class Dish(BaseModel):
    """A dish and how it is made."""

    dish: str
    steps: list[str]


def get_weather(city: str) -> str:
    """The weather now."""
    return f"snow at noon in {city}"


def feature(name):
    """Tries the function at once, a coroutine too."""

    def attempt(function):
        problem = None
        try:
            result = function()
            if inspect.iscoroutine(result):
                asyncio.run(result)
        except Exception as error:  # noqa: BLE001 - the table prints it
            problem = f"{type(error).__name__}: {error}"[:600]
        print(json.dumps({"feature": name, "problem": problem}), flush=True)
        return function

    return attempt


def same(found, wanted):
    if found != wanted:
        raise AssertionError(f"{found!r}, not {wanted!r}")


def holds(condition, what="it does not hold"):
    if not condition:
        raise AssertionError(what)


def refusal(function):
    """The error that it ends with."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 - the caller looks at it
        return error
    raise AssertionError("it was not refused")
