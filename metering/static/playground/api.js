// The page's requests, by the login's cookie: the public API at a path of the page's own, and the
// page's own endpoints; and what the page does with conversations: it keeps what it shows, lists, opens
// and deletes them. The server keeps them, private to the user who is logged in.

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

const KEPT = "/playground/conversations";
const ELSEWHERE = ["changed_elsewhere", "not_found"];

// A part of the page's state; ``leave`` and what is kept are the page's.
export function keeping(api, user) {
  const place = `helexa-playground:${user}`; // The one that this tab shows: a reload brings it back.
  const revisions = {}; // By id: the revision that this page has.
  const moved = {}; // By id: the one that the conversation is kept under instead.
  let last = Promise.resolve();

  // Returns the id that it is kept under: another one where it was changed or deleted elsewhere since.
  async function put(wanted, body) {
    const id = moved[wanted] ?? wanted;
    try {
      const url = `${KEPT}/${id}?revision=${revisions[id] ?? 0}`;
      revisions[id] = (await api.json(url, { method: "PUT", body })).revision;
      return id;
    } catch (error) {
      if (!ELSEWHERE.includes(error.code)) throw error;
      moved[wanted] = newId();
      return put(wanted, body);
    }
  }

  // One after the other: each save continues the revision that the one before has made.
  function save(id, state) {
    const body = JSON.stringify(state); // As it is now.
    const saved = last.then(() => put(id, body));
    last = saved.catch(() => {});
    return saved;
  }

  return {
    kept: [],
    searched: "",
    keepProblem: "",
    isForked: false, // The conversation was changed elsewhere: this one is another.

    // Saves what the page shows. It stays on the page where the server refuses it.
    async keep() {
      const { id } = this;
      try {
        const keptAs = await save(id, stateOf(this));
        if (!this.isForked) this.keepProblem = "";
        if (this.id === id && keptAs !== id) {
          Object.assign(this, { id: keptAs, isForked: true });
          this.keepProblem = "The conversation was changed or deleted elsewhere: this one is kept as another.";
        }
        if (this.id === keptAs) sessionStorage.setItem(place, keptAs);
      } catch (error) {
        this.keepProblem = error.message;
      }
      await this.search();
    },

    // The latest first: those in which the words stand.
    async search() {
      const words = this.searched;
      try {
        const found = (await api.json(`${KEPT}?${new URLSearchParams({ q: words })}`)).data;
        if (words === this.searched) this.kept = found;
      } catch (error) {
        this.keepProblem ||= error.message;
      }
    },

    async open(id = sessionStorage.getItem(place)) {
      if (!id) return;
      await this.leave();
      try {
        const { revision, state } = await api.json(`${KEPT}/${id}`);
        revisions[id] = revision;
        const account = this.accounts.includes(state.account) ? state.account : this.account;
        const turns = state.turns.map(ended);
        Object.assign(this, { problem: "", keepProblem: "", isForked: false, ...state, account, turns, id });
        sessionStorage.setItem(place, id);
      } catch (error) {
        if (error.code !== "not_found") this.keepProblem = error.message;
      }
    },

    async start() {
      const field = this.$refs.draft;
      await this.leave();
      Object.assign(this, { id: newId(), turns: [], draft: "", images: [], problem: "" });
      Object.assign(this, { keepProblem: "", isForked: false });
      sessionStorage.removeItem(place);
      field.focus();
    },

    async remove(id) {
      const field = this.$refs.search; // Once the pressed button is gone, it finds nothing.
      try {
        await api.ask(`${KEPT}/${id}`, { method: "DELETE" });
        if (id === this.id) await this.start();
      } catch (error) {
        this.keepProblem = error.message;
      }
      await this.search();
      field.focus();
    },
  };
}

// What is kept of the page, and nothing else.
function stateOf({ model, beside, account, system, sampling, thinking, tools, schema, turns }) {
  return { model, beside, account, system, sampling, thinking, tools, schema, turns: turns.map(turnOf) };
}

function turnOf(turn) {
  const calls = (turn.calls ?? []).filter(Boolean);
  // Those beside an answer have none beside them.
  const beside = turn.beside?.map(({ beside: _none, ...answer }) => turnOf(answer));
  return turn.role === "user" ? turn : { ...turn, calls, beside };
}

// An answer that the page was left in the middle of.
function ended(turn) {
  if (!turn.isRunning) return turn;
  const error = turn.error || "The page was left before the answer ended.";
  return { ...turn, error, isRunning: false, beside: turn.beside?.map(ended) };
}

// A random UUID; ``crypto.randomUUID`` is not there on pages that came by plain HTTP.
export function newId() {
  return "10000000-1000-4000-8000-100000000000".replace(/[018]/g, (digit) => {
    const random = crypto.getRandomValues(new Uint8Array(1))[0] & (15 >> (digit / 4));
    return (digit ^ random).toString(16);
  });
}
