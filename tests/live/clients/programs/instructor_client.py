"""instructor, which asks for objects in three ways."""

import instructor
from anthropic import Anthropic
from features import API_KEY, BASE_URL, MODEL, SOUP, URL, Dish, feature, same
from openai import OpenAI


def openai_sdk():
    return OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)


def asked(prompt):
    messages = [{"role": "user", "content": prompt}]
    return {"model": MODEL, "messages": messages, "response_model": Dish}


for mode in ("TOOLS", "JSON", "JSON_SCHEMA"):

    @feature(f"openai, {mode}")
    def _(mode=mode):
        client = instructor.from_openai(openai_sdk(), mode=instructor.Mode[mode])
        prompt = "A dish by Dish" if mode == "TOOLS" else "A dish as JSON"
        same(client.create(**asked(prompt), max_retries=0).model_dump(), SOUP)


@feature("openai, streamed")
def _():
    client = instructor.from_openai(openai_sdk())
    *_, made = client.create_partial(**asked("A dish by PartialDish"))
    same(made.model_dump(), SOUP)


@feature("anthropic, TOOLS")
def _():
    client = instructor.from_anthropic(Anthropic(base_url=URL, api_key=API_KEY, max_retries=0))
    same(client.create(**asked("A dish by Dish"), max_tokens=500).model_dump(), SOUP)
