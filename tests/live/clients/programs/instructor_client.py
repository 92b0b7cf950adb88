"""instructor, which asks for objects in three ways."""

import instructor
from anthropic import Anthropic
from features import API_KEY, BASE_URL, MODEL, SOUP, URL, Dish, feature, same
from openai import OpenAI


def openai_sdk():
    return OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)


MODES = {
    "TOOLS": "A dish by Dish",
    "JSON": "A dish as JSON",
    "JSON_SCHEMA": "A dish as JSON",
}
for mode, prompt in MODES.items():

    @feature(f"openai, {mode}")
    def _(mode=mode, prompt=prompt):
        client = instructor.from_openai(openai_sdk(), mode=instructor.Mode[mode])
        messages = [{"role": "user", "content": prompt}]
        made = client.create(model=MODEL, messages=messages, response_model=Dish, max_retries=0)
        same(made.model_dump(), SOUP)


@feature("openai, streamed")
def _():
    client = instructor.from_openai(openai_sdk())
    messages = [{"role": "user", "content": "A dish by PartialDish"}]
    *_, made = client.create_partial(model=MODEL, messages=messages, response_model=Dish)
    same(made.model_dump(), SOUP)


@feature("anthropic, TOOLS")
def _():
    sdk = Anthropic(base_url=URL, api_key=API_KEY, max_retries=0)
    client = instructor.from_anthropic(sdk)
    messages = [{"role": "user", "content": "A dish by Dish"}]
    made = client.create(model=MODEL, messages=messages, response_model=Dish, max_tokens=500)
    same(made.model_dump(), SOUP)
