// The Vercel AI SDK by each of its providers that can be pointed at another server.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { apiKey, assert, collected, feature, model, refused, smallContext, url } from "./features.mjs";

const baseURL = `${url}/v1`;
const openai = createOpenAI({ baseURL, apiKey });
const compatible = createOpenAICompatible({
  name: "helexa", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true,
});
const anthropic = createAnthropic({ baseURL, apiKey });

const dish = z.object({ dish: z.string(), steps: z.array(z.string()) });
const weather = tool({
  description: "The weather now.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `snow at noon in ${city}`,
});
const providers = {
  "@ai-sdk/openai chat": {
    of: (name) => openai.chat(name), thinking: null,
  },
  "@ai-sdk/openai responses": {
    of: (name) => openai.responses(name),
    thinking: { openai: { reasoningSummary: "auto", forceReasoning: true } },
  },
  "@ai-sdk/openai-compatible": {
    of: (name) => compatible(name), thinking: { helexa: { include_reasoning: true } },
  },
  "@ai-sdk/anthropic": {
    of: (name) => anthropic(name),
    thinking: { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } },
    dishPrompt: "A dish by json", // Of a model that it does not know it asks by a tool.
  },
};

for (const [name, { of, thinking, dishPrompt = "A dish as JSON" }] of Object.entries(providers)) {
  await feature(`${name}: answer`, async () => {
    const { text, usage, finishReason } = await generateText({ model: of(model), prompt: "Say hello" });
    assert.equal(text, "Hello there.");
    assert.equal(finishReason, "stop");
    assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0);
  });
  await feature(`${name}: stream`, async () => {
    const streamed = streamText({ model: of(model), prompt: "Say hello" });
    const pieces = await collected(streamed.textStream);
    assert.ok(pieces.length > 1);
    assert.equal(pieces.join(""), "Hello there.");
    assert.ok((await streamed.usage).outputTokens > 0);
  });
  const asked = {
    model: of(model), prompt: "What is the weather in Oslo?",
    tools: { get_weather: weather }, stopWhen: stepCountIs(3),
  };
  await feature(`${name}: tools`, async () => {
    const { text, steps } = await generateText(asked);
    assert.equal(text, "It snows in Oslo.");
    assert.deepEqual(steps[0].toolCalls[0].input, { city: "Oslo" });
  });
  await feature(`${name}: tools, streamed`, async () => {
    const streamed = streamText(asked);
    assert.equal(await streamed.text, "It snows in Oslo.");
    assert.equal((await streamed.steps).length, 2);
  });
  const structured = {
    model: of(model), prompt: dishPrompt, output: Output.object({ schema: dish }),
  };
  await feature(`${name}: structured output`, async () => {
    const { output } = await generateText(structured);
    assert.deepEqual(output, { dish: "soup", steps: ["boil", "serve"] });
  });
  await feature(`${name}: structured output, streamed`, async () => {
    const streamed = streamText(structured);
    assert.deepEqual(await streamed.output, { dish: "soup", steps: ["boil", "serve"] });
  });
  if (thinking !== null) {
    await feature(`${name}: reasoning`, async () => {
      const prompt = "What is two and two?";
      const streamed = streamText({ model: of(model), prompt, providerOptions: thinking });
      assert.equal((await streamed.reasoningText).trim(), "Two and two.");
      assert.equal((await streamed.text).trim(), "Four.");
    });
  }
  await feature(`${name}: unknown model`, async () => {
    const error = await refused(() => generateText({ model: of("nosuch"), prompt: "Say hello" }));
    assert.equal(error.statusCode, 404);
    assert.match(error.message, /nosuch/);
  });
  await feature(`${name}: full context`, async () => {
    const prompt = "word ".repeat(8000);
    const error = await refused(() => generateText({ model: of(smallContext), prompt }));
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /8192/);
  });
}
