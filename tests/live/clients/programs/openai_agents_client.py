"""OpenAI's Agents SDK, which speaks responses and chat completions."""

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from features import API_KEY, BASE_URL, MODEL, SOUP, Dish, feature, get_weather, same
from openai import AsyncOpenAI

set_tracing_disabled(True)


get_weather = function_tool(get_weather)

for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
    name = {"OpenAIResponsesModel": "responses"}.get(kind.__name__, "chat")

    def agent(kind=kind, **more):
        client = AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
        return Agent(name="tried", model=kind(model=MODEL, openai_client=client), **more)

    @feature(f"{name}: answer")
    async def _(agent=agent):
        same((await Runner.run(agent(), "Say hello")).final_output, "Hello there.")

    @feature(f"{name}: stream")
    async def _(agent=agent):
        run = Runner.run_streamed(agent(), "Say hello")
        async for _event in run.stream_events():
            pass
        same(run.final_output, "Hello there.")

    @feature(f"{name}: tools")
    async def _(agent=agent):
        run = await Runner.run(agent(tools=[get_weather]), "What is the weather in Oslo?")
        same(run.final_output, "It snows in Oslo.")

    @feature(f"{name}: tools, streamed")
    async def _(agent=agent):
        settings = ModelSettings(include_usage=True)
        run = Runner.run_streamed(
            agent(tools=[get_weather], model_settings=settings), "What is the weather in Oslo?"
        )
        async for _event in run.stream_events():
            pass
        same(run.final_output, "It snows in Oslo.")

    @feature(f"{name}: structured output")
    async def _(agent=agent):
        run = await Runner.run(agent(output_type=Dish), "A dish as JSON")
        same(run.final_output.model_dump(), SOUP)
