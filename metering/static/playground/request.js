// From what stands on the page to the request that is sent, and shown as code. Pure.

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
