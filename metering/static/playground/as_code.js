// A request as a program that sends it. Pure.

export const LANGUAGES = {
  curl: "curl",
  openai: "Python (openai)",
  anthropic: "Python (anthropic)",
  javascript: "JavaScript",
};

// What the openai package names itself goes beside it; what it does not know, into extra_body.
const EXTENSIONS = ["top_k", "min_p", "repetition_penalty", "chat_template_kwargs", "include_reasoning"];

export function asCode(language, request, baseUrl) {
  return { curl, openai, anthropic, javascript }[language](request, baseUrl);
}

function curl(request, baseUrl) {
  const body = JSON.stringify(request, null, 2).replaceAll("'", "'\\''");
  return [
    `curl ${baseUrl}/v1/chat/completions \\`,
    `  -H "Authorization: Bearer $HELEXA_API_KEY" \\`,
    `  -H "Content-Type: application/json" \\`,
    `  -d '${body}'`,
  ].join("\n");
}

function openai(request, baseUrl) {
  const own = {};
  const extra = {};
  for (const [name, value] of Object.entries(request)) {
    (EXTENSIONS.includes(name) ? extra : own)[name] = value;
  }
  const fields = Object.keys(extra).length ? { ...own, extra_body: extra } : own;
  return [
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${python(`${baseUrl}/v1`)}, api_key=os.environ["HELEXA_API_KEY"])`,
    `answer = client.chat.completions.create(${keywords(fields)})`,
    "print(answer.choices[0].message.content)",
  ].join("\n");
}

function javascript(request, baseUrl) {
  return [
    'import OpenAI from "openai";',
    "",
    `const client = new OpenAI({`,
    `  baseURL: ${JSON.stringify(`${baseUrl}/v1`)},`,
    "  apiKey: process.env.HELEXA_API_KEY,",
    "});",
    `const answer = await client.chat.completions.create(${JSON.stringify(request, null, 2)});`,
    "console.log(answer.choices[0].message.content);",
  ].join("\n");
}

const ANTHROPIC_FIELDS = {
  temperature: "temperature",
  top_p: "top_p",
  top_k: "top_k",
  stop: "stop_sequences",
};
const DEFAULT_MAX_TOKENS = 1024; // Anthropic's API has none of its own.

function anthropic(request, baseUrl) {
  const { model, messages, max_tokens, tools, ...others } = request;
  const system = messages.find((message) => message.role === "system")?.content;
  const fields = {
    model,
    max_tokens: max_tokens ?? DEFAULT_MAX_TOKENS,
    ...(system ? { system } : {}),
    messages: anthropicMessages(messages.filter((message) => message.role !== "system")),
  };
  const missing = [];
  for (const [name, value] of Object.entries(others)) {
    if (ANTHROPIC_FIELDS[name]) fields[ANTHROPIC_FIELDS[name]] = value;
    else missing.push(name);
  }
  if (tools) {
    fields.tools = tools.map(({ function: tool }) => ({
      name: tool.name,
      description: tool.description ?? "",
      input_schema: tool.parameters ?? { type: "object" },
    }));
  }
  return [
    ...missing.map((name) => `# Not in this API: ${name}`),
    "import os",
    "",
    "from anthropic import Anthropic",
    "",
    `client = Anthropic(base_url=${python(baseUrl)}, api_key=os.environ["HELEXA_API_KEY"])`,
    `answer = client.messages.create(${keywords(fields)})`,
    "print(answer.content)",
  ].join("\n");
}

function anthropicMessages(messages) {
  const turns = [];
  for (const message of messages) {
    const role = message.role === "assistant" ? "assistant" : "user";
    const content = anthropicContent(message);
    const last = turns.at(-1);
    // Results of tools come together, in the user's turn.
    if (last?.role === role && Array.isArray(last.content) && Array.isArray(content)) {
      last.content.push(...content);
    } else turns.push({ role, content });
  }
  return turns;
}

function anthropicContent(message) {
  if (message.role === "tool") {
    const { tool_call_id, content } = message;
    return [{ type: "tool_result", tool_use_id: tool_call_id, content }];
  }
  if (message.tool_calls) {
    const text = message.content ? [{ type: "text", text: message.content }] : [];
    const calls = message.tool_calls.map(({ id, function: called }) => ({
      type: "tool_use",
      id,
      name: called.name,
      input: objectOf(called.arguments),
    }));
    return [...text, ...calls];
  }
  if (!Array.isArray(message.content)) return message.content;
  return message.content.map((part) =>
    part.type === "text" ? part : { type: "image", source: imageSource(part.image_url.url) },
  );
}

function imageSource(url) {
  const found = /^data:([^;]+);base64,(.*)$/.exec(url);
  return found
    ? { type: "base64", media_type: found[1], data: found[2] }
    : { type: "url", url };
}

function objectOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

function keywords(fields) {
  const lines = Object.entries(fields).map(([name, value]) => `    ${name}=${python(value, 1)},`);
  return `\n${lines.join("\n")}\n`;
}

// A JSON value as Python writes it.
export function python(value, depth = 0) {
  const indent = "    ".repeat(depth + 1);
  const end = "    ".repeat(depth);
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return `[\n${value.map((item) => `${indent}${python(item, depth + 1)},`).join("\n")}\n${end}]`;
  }
  const items = Object.entries(value);
  if (!items.length) return "{}";
  const lines = items.map(([k, v]) => `${indent}${JSON.stringify(k)}: ${python(v, depth + 1)},`);
  return `{\n${lines.join("\n")}\n${end}}`;
}
