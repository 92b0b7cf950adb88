// OpenAI's SDK for Node.

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { apiKey, assert, collected, feature, model, refused, smallContext, url } from "./features.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const said = (content) => [{ role: "user", content }];
const dish = z.object({ dish: z.string(), steps: z.array(z.string()) });
const soup = { dish: "soup", steps: ["boil", "serve"] };
const parameters = {
  type: "object", properties: { city: { type: "string" } }, required: ["city"],
  additionalProperties: false,
};

await feature("answer", async () => {
  const answer = await client.chat.completions.create({ model, messages: said("Say hello") });
  assert.equal(answer.choices[0].message.content, "Hello there.");
});
await feature("stream", async () => {
  const stream = client.chat.completions.stream({
    model, messages: said("Say hello"), stream_options: { include_usage: true },
  });
  assert.equal(await stream.finalContent(), "Hello there.");
  assert.ok((await stream.totalUsage()).completion_tokens > 0);
});
await feature("tools", async () => {
  const runner = client.chat.completions.runTools({
    model, messages: said("What is the weather in Oslo?"), stream: true,
    tools: [{
      type: "function",
      function: {
        name: "get_weather", parameters, parse: JSON.parse,
        function: ({ city }) => `snow at noon in ${city}`,
      },
    }],
  });
  assert.equal(await runner.finalContent(), "It snows in Oslo.");
});
await feature("structured output", async () => {
  const answer = await client.chat.completions.parse({
    model, messages: said("A dish as JSON"), response_format: zodResponseFormat(dish, "dish"),
  });
  assert.deepEqual(answer.choices[0].message.parsed, soup);
});
await feature("reasoning", async () => {
  const answer = await client.chat.completions.create({
    model, messages: said("What is two and two?"), include_reasoning: true,
  });
  assert.equal(answer.choices[0].message.reasoning_content.trim(), "Two and two.");
});
await feature("completions", async () => {
  const answer = await client.completions.create({ model, prompt: "Say hello", max_tokens: 50 });
  assert.equal(answer.choices[0].text, "Hello there.");
});
await feature("responses", async () => {
  const answer = await client.responses.create({ model, input: "Say hello" });
  assert.equal(answer.output_text, "Hello there.");
  const again = await client.responses.retrieve(answer.id);
  assert.equal(again.output_text, "Hello there.");
});
await feature("responses: stream", async () => {
  const stream = client.responses.stream({ model, input: "What is two and two?" });
  const answer = await stream.finalResponse();
  assert.deepEqual(answer.output.map((item) => item.type), ["reasoning", "message"]);
});
await feature("responses: tools", async () => {
  const tools = [{ type: "function", name: "get_weather", parameters, strict: true }];
  const first = await client.responses.create({
    model, tools, input: "What is the weather in Oslo?",
  });
  const call = first.output.find((item) => item.type === "function_call");
  assert.deepEqual(JSON.parse(call.arguments), { city: "Oslo" });
  const result = { type: "function_call_output", call_id: call.call_id, output: "snow at noon" };
  const told = await client.responses.create({
    model, tools, previous_response_id: first.id, input: [result],
  });
  assert.equal(told.output_text, "It snows in Oslo.");
});
await feature("models", async () => {
  const names = (await collected(client.models.list())).map((one) => one.id);
  assert.ok(names.includes(model));
});
await feature("unknown model", async () => {
  const error = await refused(() =>
    client.chat.completions.create({ model: "nosuch", messages: said("Say hello") }));
  assert.ok(error instanceof OpenAI.NotFoundError);
});
await feature("full context", async () => {
  const error = await refused(() => client.chat.completions.create({
    model: smallContext, messages: said("word ".repeat(8000)),
  }));
  assert.equal(error.code, "context_length_exceeded");
});
