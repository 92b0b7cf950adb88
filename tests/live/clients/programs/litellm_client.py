"""LiteLLM as a library, by both of the dialects that it speaks to us."""

import json

import features as to
import litellm
from features import feature, holds, refusal, same

litellm.telemetry = False
litellm.num_retries = 0
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}


def asked(text, settings, **more):
    messages = [{"role": "user", "content": text}]
    return litellm.completion(**{"messages": messages} | settings | more).choices[0].message


def weather(settings):
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    given = settings | {"tools": [WEATHER], "max_tokens": 200}
    chunks = list(litellm.completion(messages=messages, stream=True, **given))
    message = litellm.stream_chunk_builder(chunks).choices[0].message
    call = message.tool_calls[0]
    same(json.loads(call.function.arguments), {"city": "Oslo"})
    result = {"role": "tool", "tool_call_id": call.id, "content": "snow at noon"}
    same(asked("", given, messages=[*messages, message, result]).content, "It snows in Oslo.")


async def hello_later(settings):
    messages = [{"role": "user", "content": "Say hello"}]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    stream = await litellm.acompletion(messages=messages, **options, **settings)
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    same(text, "Hello there.")
    holds(chunks[-1].usage.completion_tokens > 0, "no usage")


def try_provider(provider, base_url, dish_prompt, reasoning):
    def settings(model=to.MODEL):
        return {"model": f"{provider}/{model}", "api_base": base_url, "api_key": to.API_KEY}

    feature(f"{provider}: stream")(lambda: hello_later(settings()))
    feature(f"{provider}: tools")(lambda: weather(settings()))

    @feature(f"{provider}: structured output")
    def _():
        answer = asked(dish_prompt, settings(), response_format=to.Dish)
        same(json.loads(answer.content), to.SOUP)

    @feature(f"{provider}: reasoning")
    def _():
        answer = asked("What is two and two?", settings(), **reasoning)
        same(answer.reasoning_content.strip(), "Two and two.")

    @feature(f"{provider}: unknown model")
    def _():
        error = refusal(lambda: asked("Say hello", settings("nosuch")))
        same(type(error).__name__, "NotFoundError")

    @feature(f"{provider}: full context")
    def _():
        error = refusal(lambda: asked(to.LONG, settings(to.SMALL_CONTEXT)))
        same(type(error).__name__, "ContextWindowExceededError")


BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}
BUDGET["allowed_openai_params"] = ["thinking"]
try_provider("openai", to.BASE_URL, "A dish as JSON", {"include_reasoning": True})
try_provider("anthropic", to.URL, "A dish by json_tool_call", BUDGET)


@feature("responses")
def _():
    at = {"api_base": to.BASE_URL, "api_key": to.API_KEY}
    answer = litellm.responses(model=f"openai/{to.MODEL}", input="Say hello", **at)
    same(answer.output[0].content[0].text, "Hello there.")
