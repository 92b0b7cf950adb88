"""LlamaIndex by its class for servers that are like OpenAI's."""

from features import API_KEY, BASE_URL, MODEL, SOUP, Dish, feature, get_weather, refusal, same
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def made(model=MODEL):
    return OpenAILike(
        model=model,
        api_base=BASE_URL,
        api_key=API_KEY,
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
        context_window=8192,
        max_retries=0,
    )


@feature("stream")
def _():
    pieces = made().stream_chat([ChatMessage(role="user", content="Say hello")])
    same("".join(piece.delta or "" for piece in pieces), "Hello there.")


@feature("tools")
def _():
    tool = FunctionTool.from_defaults(get_weather)
    answer = made().predict_and_call([tool], "What is the weather in Oslo?")
    same(str(answer), "snow at noon in Oslo")


@feature("structured output")
def _():
    answer = made().as_structured_llm(Dish).complete("A dish as JSON")
    same(answer.raw.model_dump(), SOUP)


@feature("unknown model")
def _():
    error = refusal(lambda: made("nosuch").complete("Say hello"))
    same(type(error).__name__, "NotFoundError")
