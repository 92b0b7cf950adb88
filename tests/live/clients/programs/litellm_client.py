"""LiteLLM as a library, by both of the dialects that it speaks to us."""

import json

import litellm
from features import (
    API_KEY,
    BASE_URL,
    LONG,
    MODEL,
    SMALL_CONTEXT,
    SOUP,
    URL,
    Dish,
    feature,
    holds,
    refusal,
    same,
)

litellm.telemetry = False
litellm.num_retries = 0


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def text_of(text):
    return [{"role": "user", "content": text}]


def weather(settings):
    messages = text_of("What is the weather in Oslo?")
    asked = settings | {"tools": [WEATHER], "max_tokens": 200}
    message = litellm.completion(messages=messages, **asked).choices[0].message
    call = message.tool_calls[0]
    same(json.loads(call.function.arguments), {"city": "Oslo"})
    result = {"role": "tool", "tool_call_id": call.id, "content": "snow at noon"}
    final = litellm.completion(messages=[*messages, message, result], **asked)
    same(final.choices[0].message.content, "It snows in Oslo.")


def streamed_weather(settings):
    chunks = list(
        litellm.completion(
            messages=text_of("What is the weather in Oslo?"),
            tools=[WEATHER],
            stream=True,
            **settings,
        )
    )
    message = litellm.stream_chunk_builder(chunks).choices[0].message
    same(json.loads(message.tool_calls[0].function.arguments), {"city": "Oslo"})


async def hello_later(settings):
    stream = await litellm.acompletion(
        messages=text_of("Say hello"),
        stream=True,
        stream_options={"include_usage": True},
        **settings,
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    same(text, "Hello there.")
    holds(chunks[-1].usage.completion_tokens > 0, "no usage")


def try_provider(name, provider, base_url, dish_prompt, reasoning):
    settings = {"model": f"{provider}/{MODEL}", "api_base": base_url, "api_key": API_KEY}

    @feature(f"{name}: answer")
    def _():
        answer = litellm.completion(messages=text_of("Say hello"), **settings)
        same(answer.choices[0].message.content, "Hello there.")

    feature(f"{name}: stream")(lambda: hello_later(settings))
    feature(f"{name}: tools")(lambda: weather(settings))
    feature(f"{name}: tools, streamed")(lambda: streamed_weather(settings))

    @feature(f"{name}: structured output")
    def _():
        answer = litellm.completion(messages=text_of(dish_prompt), response_format=Dish, **settings)
        same(json.loads(answer.choices[0].message.content), SOUP)

    @feature(f"{name}: reasoning")
    def _():
        asked = text_of("What is two and two?")
        answer = litellm.completion(messages=asked, **settings, **reasoning)
        same(answer.choices[0].message.reasoning_content.strip(), "Two and two.")

    @feature(f"{name}: unknown model")
    def _():
        wrong = settings | {"model": f"{provider}/nosuch"}
        error = refusal(lambda: litellm.completion(messages=text_of("Say hello"), **wrong))
        same(type(error).__name__, "NotFoundError")

    @feature(f"{name}: full context")
    def _():
        small = settings | {"model": f"{provider}/{SMALL_CONTEXT}"}
        error = refusal(lambda: litellm.completion(messages=text_of(LONG), **small))
        same(type(error).__name__, "ContextWindowExceededError")


try_provider("openai", "openai", BASE_URL, "A dish as JSON", {"include_reasoning": True})
try_provider(
    "anthropic",
    "anthropic",
    URL,
    "A dish by json_tool_call",
    {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}
    | {"allowed_openai_params": ["thinking"]},
)


@feature("responses")
def _():
    answer = litellm.responses(
        model=f"openai/{MODEL}", input="Say hello", api_base=BASE_URL, api_key=API_KEY
    )
    same(answer.output[0].content[0].text, "Hello there.")
