// The public API as the page speaks it: by the login's cookie, at a path of the page's own.

export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message || `The server answered ${status}.`);
    this.status = status;
    this.code = error?.code || "";
  }
}

const BASE = "/playground/v1";

export class Api {
  constructor(csrfToken) {
    this.headers = { "X-CSRFToken": csrfToken };
  }

  // Without aliases, which are the same models once more.
  async models(account) {
    const cards = (await this.get("/models", account)).data;
    return cards.filter((card) => !card.alias_of);
  }

  async model(name, account) {
    return this.get(`/models/${encodeURIComponent(name)}`, account);
  }

  // The record of a request, null while there is none. As the user who is logged in.
  async record(requestId) {
    const answer = await fetch(`/api/requests?limit=1&id=${requestId}`).catch(() => null);
    return answer?.ok ? (await answer.json()).data[0] ?? null : null;
  }

  // The HTML of a text's Markdown.
  async htmlOf(text) {
    const answer = await fetch("/playground/markdown", { method: "POST", headers: this.headers, body: text });
    return (await checked(answer)).text();
  }

  async get(path, account) {
    return checked(await fetch(urlOf(path, account), { headers: this.headers })).then((answer) => answer.json());
  }

  // Yields a chat completion's chunks until the end of its stream. The request's id comes first.
  async *chat(request, account, signal, onId) {
    const answer = await fetch(urlOf("/chat/completions", account), {
      method: "POST",
      headers: { ...this.headers, "Content-Type": "application/json" },
      body: JSON.stringify(request),
      signal,
    });
    onId(answer.headers.get("x-request-id") ?? "");
    await checked(answer);
    for await (const data of eventData(answer.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(answer.status, chunk.error);
      yield chunk;
    }
  }
}

async function checked(answer) {
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => null);
  throw new ApiError(answer.status, body?.error);
}

function urlOf(path, account) {
  return `${BASE}${path}?${new URLSearchParams({ account })}`;
}

// The data of server-sent events, comments left out.
export async function* eventData(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split(/\r?\n\r?\n/);
    rest = events.pop();
    for (const event of events) {
      const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
    }
  }
}
