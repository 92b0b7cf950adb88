// A server that wants a key, and clients that have another one. Nobody on its own machine needs one,
// so they come as if through a proxy.

import Anthropic from "@anthropic-ai/sdk";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText } from "ai";
import OpenAI from "openai";
import { assert, feature, model, refused, url } from "./features.mjs";

const apiKey = "wrong";
const headers = { "x-forwarded-for": "192.0.2.1" };
const baseURL = `${url}/v1`;
const messages = [{ role: "user", content: "Say hello" }];

await feature("ai: wrong key", async () => {
  const asked = { model: createOpenAI({ baseURL, apiKey, headers })(model), prompt: "Say hello" };
  assert.equal((await refused(() => generateText(asked))).statusCode, 401);
});
await feature("openai node: wrong key", async () => {
  const client = new OpenAI({ baseURL, apiKey, defaultHeaders: headers });
  const error = await refused(() => client.chat.completions.create({ model, messages }));
  assert.ok(error instanceof OpenAI.AuthenticationError);
});
await feature("anthropic node: wrong key", async () => {
  const client = new Anthropic({ baseURL: url, apiKey, defaultHeaders: headers });
  const error = await refused(() => client.messages.create({ model, max_tokens: 9, messages }));
  assert.ok(error instanceof Anthropic.AuthenticationError);
});
