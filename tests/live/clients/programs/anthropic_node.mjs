// Anthropic's SDK for Node.

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";
import { apiKey, assert, collected, feature, model, refused, smallContext, url } from "./features.mjs";

const client = new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
const said = (content) => [{ role: "user", content }];
const textOf = (message) =>
  message.content.filter((block) => block.type === "text").map((block) => block.text).join("");
const asked = (content) => ({ model, max_tokens: 2000, messages: said(content) });

await feature("answer", async () => {
  const message = await client.messages.create(asked("Say hello"));
  assert.equal(textOf(message), "Hello there.");
  assert.equal(message.stop_reason, "end_turn");
});
await feature("stream", async () => {
  const stream = client.messages.stream(asked("Say hello"));
  assert.equal(await stream.finalText(), "Hello there.");
});
await feature("tools", async () => {
  const weather = betaZodTool({
    name: "get_weather", description: "The weather now.",
    inputSchema: z.object({ city: z.string() }), run: ({ city }) => `snow at noon in ${city}`,
  });
  const message = await client.beta.messages.toolRunner({
    ...asked("What is the weather in Oslo?"), tools: [weather],
  });
  assert.equal(textOf(message), "It snows in Oslo.");
});
await feature("structured output", async () => {
  const schema = {
    type: "object", required: ["dish", "steps"], additionalProperties: false,
    properties: { dish: { type: "string" }, steps: { type: "array", items: { type: "string" } } },
  };
  const message = await client.messages.create({
    ...asked("A dish as JSON"), output_config: { format: { type: "json_schema", schema } },
  });
  assert.deepEqual(JSON.parse(textOf(message)), { dish: "soup", steps: ["boil", "serve"] });
});
await feature("reasoning", async () => {
  const message = await client.messages.stream({
    ...asked("What is two and two?"), thinking: { type: "enabled", budget_tokens: 1024 },
  }).finalMessage();
  assert.deepEqual(message.content.map((block) => block.type), ["thinking", "text"]);
});
await feature("count tokens", async () => {
  const { input_tokens: counted } = await client.messages.countTokens({
    model, messages: said("Say hello"),
  });
  assert.ok(counted > 0);
});
await feature("models", async () => {
  const names = (await collected(client.models.list())).map((one) => one.id);
  assert.ok(names.includes(model));
});
await feature("unknown model", async () => {
  const error = await refused(() => client.messages.create({ ...asked("Say hello"), model: "nosuch" }));
  assert.ok(error instanceof Anthropic.NotFoundError);
});
await feature("full context", async () => {
  const error = await refused(() =>
    client.messages.create({ ...asked("word ".repeat(8000)), model: smallContext }));
  assert.ok(error instanceof Anthropic.BadRequestError);
  assert.match(error.message, /prompt is too long/);
});
