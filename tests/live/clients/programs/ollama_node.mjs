// Ollama's package for JavaScript, over its own API.

import { Ollama } from "ollama";
import { assert, collected, feature, model, refused, smallContext, url } from "./features.mjs";

const client = new Ollama({ host: url });
const said = (content) => [{ role: "user", content }];
const weather = {
  type: "function",
  function: {
    name: "get_weather", description: "The weather of a city.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const dish = {
  type: "object", required: ["dish", "steps"],
  properties: { dish: { type: "string" }, steps: { type: "array", items: { type: "string" } } },
};

await feature("chat", async () => {
  const answer = await client.chat({ model, messages: said("Say hello") });
  assert.equal(answer.message.content, "Hello there.");
  assert.ok(answer.done && answer.eval_count > 0 && answer.prompt_eval_count > 0);
});
await feature("stream", async () => {
  const parts = await collected(
    await client.chat({ model, messages: said("Say hello"), stream: true }));
  assert.equal(parts.map((part) => part.message.content).join(""), "Hello there.");
  assert.ok(parts.at(-1).done);
});
await feature("thinking", async () => {
  const answer = await client.chat({ model, messages: said("What is two and two?"), think: true });
  assert.equal(answer.message.thinking.trim(), "Two and two.");
  assert.equal(answer.message.content, "Four.");
});
await feature("tools", async () => {
  const messages = said("What is the weather in Oslo?");
  const first = await client.chat({ model, messages, tools: [weather] });
  assert.deepEqual(first.message.tool_calls[0].function.arguments, { city: "Oslo" });
  const result = { role: "tool", tool_name: "get_weather", content: "snow at noon" };
  const told = await client.chat({
    model, messages: [...messages, first.message, result], tools: [weather],
  });
  assert.equal(told.message.content, "It snows in Oslo.");
});
await feature("structured output", async () => {
  const answer = await client.chat({ model, messages: said("A dish as JSON"), format: dish });
  assert.deepEqual(JSON.parse(answer.message.content), { dish: "soup", steps: ["boil", "serve"] });
});
await feature("generate", async () => {
  const answer = await client.generate({ model, prompt: "Say hello", options: { num_predict: 50 } });
  assert.equal(answer.response, "Hello there.");
});
await feature("abort", async () => {
  const stream = await client.chat({ model, messages: said("Say hello"), stream: true });
  stream.abort();
  assert.equal((await refused(() => collected(stream))).name, "AbortError");
});
await feature("models", async () => {
  const names = (await client.list()).models.map((one) => one.name);
  assert.ok(names.some((name) => name.startsWith(model)));
  assert.ok((await client.show({ model })).capabilities.includes("tools"));
  assert.ok((await client.ps()).models.length > 0);
  assert.match((await client.version()).version, /^\d+\.\d+/);
});
await feature("unknown model", async () => {
  const error = await refused(() => client.chat({ model: "nosuch", messages: said("Say hello") }));
  assert.equal(error.status_code, 404);
});
await feature("full context", async () => {
  const error = await refused(() =>
    client.chat({ model: smallContext, messages: said("word ".repeat(8000)) }));
  assert.equal(error.status_code, 400);
});
