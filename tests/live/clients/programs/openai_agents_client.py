"""OpenAI's Agents SDK, which speaks responses and chat completions."""

import agents
from features import API_KEY, BASE_URL, MODEL, SOUP, Dish, feature, get_weather, same
from openai import AsyncOpenAI

agents.set_tracing_disabled(True)
get_weather = agents.function_tool(get_weather)

for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):

    def agent(kind=kind, **more):
        client = AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
        return agents.Agent(name="tried", model=kind(model=MODEL, openai_client=client), **more)

    @feature(f"{kind.__name__}: tools, streamed")
    async def _(agent=agent):
        settings = agents.ModelSettings(include_usage=True)
        asked = agent(tools=[get_weather], model_settings=settings)
        run = agents.Runner.run_streamed(asked, "What is the weather in Oslo?")
        async for _event in run.stream_events():
            pass
        same(run.final_output, "It snows in Oslo.")

    @feature(f"{kind.__name__}: structured output")
    async def _(agent=agent):
        run = await agents.Runner.run(agent(output_type=Dish), "A dish as JSON")
        same(run.final_output.model_dump(), SOUP)
