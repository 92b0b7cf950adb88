"""Pydantic AI by its three models that can be pointed at another server."""

from anthropic import AsyncAnthropic
from features import API_KEY, BASE_URL, MODEL, SOUP, URL, Dish, feature, get_weather, refusal, same
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


def openai_provider():
    return OpenAIProvider(base_url=BASE_URL, api_key=API_KEY)


def anthropic_provider():
    return AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=URL, api_key=API_KEY))


KINDS = {
    "chat": lambda name: OpenAIChatModel(name, provider=openai_provider()),
    "responses": lambda name: OpenAIResponsesModel(name, provider=openai_provider()),
    "anthropic": lambda name: AnthropicModel(name, provider=anthropic_provider()),
}

for kind, make in KINDS.items():

    @feature(f"{kind}: stream")
    async def _(make=make):
        async with Agent(make(MODEL)).run_stream("Say hello") as stream:
            pieces = [piece async for piece in stream.stream_text(delta=True)]
        same("".join(pieces), "Hello there.")

    @feature(f"{kind}: tools")
    def _(make=make):
        agent = Agent(make(MODEL), tools=[get_weather])
        same(agent.run_sync("What is the weather in Oslo?").output, "It snows in Oslo.")

    @feature(f"{kind}: structured output by a tool")
    def _(make=make):
        agent = Agent(make(MODEL), output_type=Dish)
        same(agent.run_sync("A dish by final_result").output.model_dump(), SOUP)

    if kind != "anthropic":

        @feature(f"{kind}: structured output")
        def _(make=make):
            agent = Agent(make(MODEL), output_type=NativeOutput(Dish))
            same(agent.run_sync("A dish as JSON").output.model_dump(), SOUP)

    @feature(f"{kind}: unknown model")
    def _(make=make):
        error = refusal(lambda: Agent(make("nosuch")).run_sync("Say hello"))
        same(error.status_code, 404)
