// The page's requests, by the login's cookie: the public API at a path of the page's own, and the
// page's own endpoints.

export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message || `The server answered ${status}.`);
    this.code = error?.code || "";
  }
}

const BASE = "/playground/v1";

export class Api {
  constructor(csrfToken) {
    this.headers = { "X-CSRFToken": csrfToken };
  }

  // The response. Throws ApiError where it is a refusal, or there is none.
  async ask(url, { signal, onAnswer, ...options } = {}) {
    const answer = await fetch(url, { ...options, signal, headers: this.headers }).catch((error) => {
      if (signal?.aborted) throw error;
      throw new ApiError(0, { message: "The server does not answer." });
    });
    onAnswer?.(answer);
    if (answer.ok) return answer;
    const body = await answer.json().catch(() => null);
    throw new ApiError(answer.status, body?.error);
  }

  async json(url, options) {
    return (await this.ask(url, options)).json();
  }

  // Without aliases, which are the same models once more.
  async models(account) {
    const cards = (await this.json(urlOf("/models", account))).data;
    return cards.filter((card) => !card.alias_of);
  }

  async model(name, account) {
    return this.json(urlOf(`/models/${encodeURIComponent(name)}`, account));
  }

  // The record of a request, null while there is none. As the user who is logged in.
  async record(requestId) {
    const found = await this.json(`/api/requests?limit=1&id=${requestId}`).catch(() => null);
    return found?.data[0] ?? null;
  }

  // The HTML of a text's Markdown.
  async htmlOf(text) {
    return (await this.ask("/playground/markdown", { method: "POST", body: text })).text();
  }

  // Yields a chat completion's chunks until the end of its stream. The request's id comes first.
  async *chat(request, account, signal, onId) {
    const answer = await this.ask(urlOf("/chat/completions", account), {
      method: "POST",
      body: new Blob([JSON.stringify(request)], { type: "application/json" }),
      signal,
      onAnswer: ({ headers }) => onId(headers.get("x-request-id") ?? ""),
    });
    for await (const data of eventData(answer.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(answer.status, chunk.error);
      yield chunk;
    }
  }
}

function urlOf(path, account) {
  return `${BASE}${path}?${new URLSearchParams({ account })}`;
}

// The data of server-sent events, comments left out.
async function* eventData(stream) {
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
