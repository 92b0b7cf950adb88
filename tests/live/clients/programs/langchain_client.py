"""LangChain's two integrations that can be pointed at another server."""

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
    get_weather,
    holds,
    refusal,
    same,
)
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

get_weather = tool(get_weather)


def chat_openai(model=MODEL, **more):
    return ChatOpenAI(model=model, base_url=BASE_URL, api_key=API_KEY, max_retries=0, **more)


def responses(model=MODEL, **more):
    return chat_openai(model, use_responses_api=True, **more)


def chat_anthropic(model=MODEL, **more):
    settings = {"max_tokens": 2000, "max_retries": 0, "api_key": API_KEY, "base_url": URL}
    return ChatAnthropic(model=model, **(settings | more))


def try_integration(name, make, methods):
    @feature(f"{name}: answer")
    def _():
        same(make().invoke("Say hello").text, "Hello there.")

    @feature(f"{name}: stream")
    def _():
        chunks = list(make(stream_usage=True).stream("Say hello"))
        same("".join(chunk.text for chunk in chunks), "Hello there.")
        holds(any(chunk.usage_metadata for chunk in chunks), "no usage")

    @feature(f"{name}: tools")
    def _():
        model = make().bind_tools([get_weather])
        asked = HumanMessage("What is the weather in Oslo?")
        called = model.invoke([asked])
        call = called.tool_calls[0]
        same(call["args"], {"city": "Oslo"})
        result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
        same(model.invoke([asked, called, result]).text, "It snows in Oslo.")

    @feature(f"{name}: tools, streamed")
    def _():
        whole = None
        for chunk in make().bind_tools([get_weather]).stream("What is the weather in Oslo?"):
            whole = chunk if whole is None else whole + chunk
        same(whole.tool_calls[0]["args"], {"city": "Oslo"})

    for method, prompt in methods.items():

        @feature(f"{name}: structured output by {method}")
        def _(method=method, prompt=prompt):
            made = make().with_structured_output(Dish, method=method).invoke(prompt)
            same(made.model_dump(), SOUP)

    @feature(f"{name}: unknown model")
    def _():
        error = refusal(lambda: make("nosuch").invoke("Say hello"))
        holds(type(error).__name__.endswith("ModelNotFoundError"), repr(error))

    @feature(f"{name}: full context")
    def _():
        error = refusal(lambda: make(SMALL_CONTEXT).invoke(LONG))
        holds("8192" in str(error) or "ontext" in type(error).__name__, repr(error))


both = {"json_schema": "A dish as JSON", "function_calling": "A dish by Dish"}
try_integration("langchain-openai chat", chat_openai, both)
try_integration("langchain-openai responses", responses, both)
try_integration("langchain-anthropic", chat_anthropic, both)


@feature("langchain-anthropic: reasoning")
def _():
    model = chat_anthropic(thinking={"type": "enabled", "budget_tokens": 1024})
    kinds = [block["type"] for block in model.invoke("What is two and two?").content]
    same(kinds, ["thinking", "text"])
