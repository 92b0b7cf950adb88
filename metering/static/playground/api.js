// The public API as the page speaks it: with the user's own short-lived key.

const SPARE_S = 60; // A key that is about to expire is not used any more.

export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message || `The server answered ${status}.`);
    this.status = status;
    this.code = error?.code || "";
  }
}

export class Api {
  constructor(user, csrfToken, keyUrl) {
    this.user = user;
    this.csrfToken = csrfToken;
    this.keyUrl = keyUrl;
  }

  // A key of the account, kept in this tab until it expires.
  async key(account) {
    const place = `helexa-playground-key:${this.user}:${account}`;
    const kept = JSON.parse(sessionStorage.getItem(place) || "null");
    if (kept && kept.expires_unix_s - SPARE_S > Date.now() / 1000) return kept.key;
    const answer = await fetch(this.keyUrl, {
      method: "POST",
      headers: { "X-CSRFToken": this.csrfToken },
      body: new URLSearchParams({ account }),
    });
    if (!answer.ok) throw new ApiError(answer.status, { message: await reason(answer) });
    const made = await answer.json();
    sessionStorage.setItem(place, JSON.stringify(made));
    return made.key;
  }

  // What this tab holds is forgotten: the key was refused.
  forgetKey(account) {
    sessionStorage.removeItem(`helexa-playground-key:${this.user}:${account}`);
  }

  // Without aliases, which are the same models once more.
  async models(account) {
    const cards = (await this.get("/v1/models", account)).data;
    return cards.filter((card) => !card.aliases.includes(card.id));
  }

  async model(name, account) {
    return this.get(`/v1/models/${encodeURIComponent(name)}`, account);
  }

  async get(path, account) {
    const headers = { Authorization: `Bearer ${await this.key(account)}` };
    return checked(await fetch(path, { headers })).then((answer) => answer.json());
  }

  // Yields a chat completion's chunks until the end of its stream.
  async *chat(request, account, signal) {
    const answer = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: {
        Authorization: `Bearer ${await this.key(account)}`,
        "Content-Type": "application/json",
      },
      body: JSON.stringify(request),
      signal,
    });
    if (answer.status === 401) this.forgetKey(account);
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

async function reason(answer) {
  const body = await answer.json().catch(() => null);
  return body?.error || `No key: the server answered ${answer.status}. Reload the page to log in.`;
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
