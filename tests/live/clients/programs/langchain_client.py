"""LangChain's two integrations that can be pointed at another server."""

import features as to
from features import feature, holds, refusal, same
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

get_weather = tool(to.get_weather)


def chat(model=to.MODEL, **more):
    at = {"base_url": to.BASE_URL, "api_key": to.API_KEY}
    return ChatOpenAI(model=model, max_retries=0, **at, **more)


def responses(model=to.MODEL, **more):
    return chat(model, use_responses_api=True, **more)


def messages(model=to.MODEL, **more):
    at = {"base_url": to.URL, "api_key": to.API_KEY}
    return ChatAnthropic(model=model, max_tokens=2000, max_retries=0, **at, **more)


for make in (chat, responses, messages):
    name = make.__name__

    @feature(f"{name}: stream")
    def _(make=make):
        chunks = list(make(stream_usage=True).stream("Say hello"))
        same("".join(chunk.text for chunk in chunks), "Hello there.")
        holds(any(chunk.usage_metadata for chunk in chunks), "no usage")

    @feature(f"{name}: tools, streamed and answered")
    def _(make=make):
        model = make().bind_tools([get_weather])
        asked = HumanMessage("What is the weather in Oslo?")
        called = None
        for chunk in model.stream([asked]):
            called = chunk if called is None else called + chunk
        call = called.tool_calls[0]
        same(call["args"], {"city": "Oslo"})
        result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
        same(model.invoke([asked, called, result]).text, "It snows in Oslo.")

    for method, prompt in (
        ("json_schema", "A dish as JSON"),
        ("function_calling", "A dish by Dish"),
    ):

        @feature(f"{name}: structured output by {method}")
        def _(make=make, method=method, prompt=prompt):
            made = make().with_structured_output(to.Dish, method=method).invoke(prompt)
            same(made.model_dump(), to.SOUP)

    @feature(f"{name}: unknown model")
    def _(make=make):
        error = refusal(lambda: make("nosuch").invoke("Say hello"))
        holds(type(error).__name__.endswith("ModelNotFoundError"), repr(error))

    @feature(f"{name}: full context")
    def _(make=make):
        error = refusal(lambda: make(to.SMALL_CONTEXT).invoke(to.LONG))
        holds("8192" in str(error) or "ontext" in type(error).__name__, repr(error))


@feature("messages: reasoning")
def _():
    model = messages(thinking={"type": "enabled", "budget_tokens": 1024})
    kinds = [block["type"] for block in model.invoke("What is two and two?").content]
    same(kinds, ["thinking", "text"])
