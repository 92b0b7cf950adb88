// From what stands on the page to the request that is sent, and shown as code; and an answer as it
// comes in: text, thinking, calls, and what it took. Pure but for the clock.

export class FieldError extends Error {}

// Turns -> messages of a chat completion. A failed turn has no answer to send; the questions before and
// after it become one message, because many chat templates want turns that alternate.
export function messagesOf(system, turns) {
  const messages = system.trim() ? [{ role: "system", content: system }] : [];
  for (const turn of turns) {
    if (turn.role === "assistant") messages.push(...answerMessages(turn));
    else if (messages.at(-1)?.role === "user") join(messages.at(-1), turn);
    else messages.push({ role: "user", content: contentOf(turn) });
  }
  return messages;
}

function join(message, turn) {
  const content = contentOf(turn);
  if (typeof message.content === "string" && typeof content === "string") {
    message.content = `${message.content}\n\n${content}`;
  } else {
    message.content = [...partsOf(message.content), ...partsOf(content)];
  }
}

function partsOf(content) {
  return typeof content === "string" ? [{ type: "text", text: content }] : content;
}

function contentOf(turn) {
  if (!turn.images?.length) return turn.text;
  const images = turn.images.map((url) => ({ type: "image_url", image_url: { url } }));
  return [...images, { type: "text", text: turn.text }];
}

// The calls of an answer are followed by what the user gave as their results.
function answerMessages(turn) {
  if (!turn.calls?.length) return turn.text ? [{ role: "assistant", content: turn.text }] : [];
  const calls = turn.calls.map(({ id, name, arguments: text }) => ({
    id,
    type: "function",
    function: { name, arguments: text },
  }));
  const results = turn.calls.map(({ id, result }) => ({
    role: "tool",
    tool_call_id: id,
    content: result || "",
  }));
  return [{ role: "assistant", content: turn.text || null, tool_calls: calls }, ...results];
}

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"];
const WHOLE_NUMBERS = ["max_tokens", "seed"];

// Sampling fields that were filled in. Throws FieldError, naming the field.
export function samplingOf(fields) {
  const sampling = {};
  for (const name of [...NUMBERS, ...WHOLE_NUMBERS]) {
    const text = String(fields[name] ?? "").trim();
    if (!text) continue;
    const number = Number(text);
    if (!Number.isFinite(number)) throw new FieldError(`${name}: ${text} is not a number`);
    if (WHOLE_NUMBERS.includes(name) && !Number.isInteger(number)) {
      throw new FieldError(`${name}: ${text} is not a whole number`);
    }
    sampling[name] = number;
  }
  const stop = String(fields.stop ?? "").split("\n").filter(Boolean);
  if (stop.length) sampling.stop = stop;
  return sampling;
}

function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new FieldError(`${what} is not JSON: ${error.message}`);
  }
}

// Tools as a list of JSON Schema functions, with or without OpenAI's wrapping.
export function toolsOf(text) {
  if (!text.trim()) return [];
  const tools = parsed(text, "Tools");
  if (!Array.isArray(tools)) throw new FieldError("Tools: a JSON list of functions");
  return tools.map((tool) => (tool.function ? tool : { type: "function", function: tool }));
}

export function formatOf(text) {
  if (!text.trim()) return null;
  const schema = parsed(text, "The schema");
  return { type: "json_schema", json_schema: { name: "answer", schema } };
}

// The body of POST /v1/chat/completions, without ``stream``.
export function requestOf(page, turns) {
  const request = { model: page.model, messages: messagesOf(page.system, turns) };
  Object.assign(request, samplingOf(page.sampling));
  if (page.thinking === "off") request.chat_template_kwargs = { enable_thinking: false };
  // Thinking is told to those who ask; where it is not, a model need not think at all.
  if (page.mayThink && page.thinking !== "off") request.include_reasoning = true;
  if (page.thinking === "on") request.chat_template_kwargs = { enable_thinking: true };
  const tools = toolsOf(page.tools);
  if (tools.length) request.tools = tools;
  const format = formatOf(page.schema);
  if (format) request.response_format = format;
  return request;
}

export function newAnswer(model = "") {
  return {
    role: "assistant",
    model,
    text: "",
    thinking: "",
    calls: [],
    finish: "",
    error: "",
    requestId: "",
    stats: null,
    isRunning: true,
  };
}

export class AnswerReader {
  constructor(turn, nowMs) {
    this.turn = turn;
    this.nowMs = nowMs;
    this.startedMs = nowMs();
    this.firstMs = null;
  }

  add(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const { delta = {} } = choice;
    if (delta.content || delta.reasoning_content || delta.tool_calls) this.firstMs ??= this.nowMs();
    if (delta.content) this.turn.text += delta.content;
    if (delta.reasoning_content) this.turn.thinking += delta.reasoning_content;
    for (const part of delta.tool_calls ?? []) this.addCall(part);
    if (choice.finish_reason) this.turn.finish = choice.finish_reason;
  }

  addCall(part) {
    const call = (this.turn.calls[part.index] ??= { id: "", name: "", arguments: "", result: "" });
    if (part.id) call.id = part.id;
    if (part.function?.name) call.name = part.function.name;
    call.arguments += part.function?.arguments ?? "";
  }

  end() {
    this.endedMs = this.nowMs();
    this.turn.isRunning = false;
    this.count(this.usage);
  }

  // By the record of its request: what it cost; and its tokens, which a stopped stream does not bring.
  countByRecord(record) {
    const recorded = {
      prompt_tokens: record.prompt_tokens,
      completion_tokens: record.completion_tokens,
      prompt_tokens_details: { cached_tokens: record.cached_tokens },
    };
    this.count(this.usage ?? recorded, record.cost_micro_usd);
  }

  // Tokens as the server counted them; times as this browser saw them.
  count(usage, costMicroUsd = 0) {
    this.usage = usage;
    const { endedMs } = this;
    const tokens = this.usage?.completion_tokens ?? null;
    const decodeMs = this.firstMs === null ? 0 : endedMs - this.firstMs;
    this.turn.stats = {
      isCut: this.turn.finish === "length",
      promptTokens: this.usage?.prompt_tokens ?? null,
      cachedTokens: this.usage?.prompt_tokens_details?.cached_tokens ?? 0,
      tokens,
      costMicroUsd,
      firstMs: this.firstMs === null ? null : Math.round(this.firstMs - this.startedMs),
      tokensPerS: tokens > 1 && decodeMs > 0 ? ((tokens - 1) * 1000) / decodeMs : null,
    };
  }
}

export function inWords(stats) {
  if (!stats) return "";
  const cached = stats.cachedTokens ? ` (${stats.cachedTokens} cached)` : "";
  return [
    stats.promptTokens === null ? "" : `${stats.promptTokens} tokens in${cached}`,
    stats.tokens === null ? "" : `${stats.tokens} out`,
    stats.firstMs === null ? "" : `first after ${stats.firstMs} ms`,
    stats.tokensPerS === null ? "" : `${stats.tokensPerS.toFixed(1)} tok/s`,
    stats.costMicroUsd ? `$${Number((stats.costMicroUsd / 1e6).toPrecision(3))}` : "",
    stats.isCut ? "cut off: max_tokens, the context or the budget was reached" : "",
  ]
    .filter(Boolean)
    .join(" · ");
}
