// Real models behind the server: the default one, and one of embeddings.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, streamText } from "ai";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { apiKey, assert, feature, url } from "./features.mjs";

const baseURL = `${url}/v1`;
const chatModel = "smollm2-135m-instruct";
const embeddingModel = "all-minilm-l6-v2";
const question = "What is the capital of France?";
const values = ["A man is eating.", "Someone has a meal."];

await feature("ai: answer of the default model", async () => {
  const model = createOpenAI({ baseURL, apiKey }).chat(chatModel);
  assert.match(await streamText({ model, prompt: question, temperature: 0 }).text, /Paris/);
});
await feature("anthropic node: answer of the default model", async () => {
  const client = new Anthropic({ baseURL: url, apiKey });
  const stream = client.messages.stream({
    model: chatModel, max_tokens: 50, temperature: 0,
    messages: [{ role: "user", content: question }],
  });
  assert.match(await stream.finalText(), /Paris/);
});
for (const make of [createOpenAI, createOpenAICompatible]) {
  await feature(`ai: embeddings by ${make.name}`, async () => {
    const provider = make({ name: "helexa", baseURL, apiKey });
    const { embeddings } = await embedMany({
      model: provider.embeddingModel(embeddingModel), values,
    });
    assert.deepEqual(embeddings.map((one) => one.length), [384, 384]);
  });
}
await feature("openai node: embeddings", async () => {
  const client = new OpenAI({ baseURL, apiKey });
  const { data } = await client.embeddings.create({ model: embeddingModel, input: values });
  assert.equal(data[1].embedding.length, 384);
});
