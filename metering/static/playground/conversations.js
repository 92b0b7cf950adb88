// Conversations are kept on the server, private to the user who is logged in.

const BASE = "/playground/conversations";
const ELSEWHERE = ["changed_elsewhere", "not_found"];

export class ConversationError extends Error {
  constructor(error, status) {
    super(error?.message || `The conversation was not kept or found: the server answered ${status}.`);
    this.code = error?.code || "";
  }
}

export class Conversations {
  constructor(user, csrfToken) {
    this.place = `helexa-playground:${user}`;
    this.headers = { "X-CSRFToken": csrfToken };
    this.revisions = {}; // By id: the revision that this page has.
    this.moved = {}; // By id: the one that the conversation is kept under instead.
    this.last = Promise.resolve();
  }

  // The latest first: those in which the words stand.
  async list(words = "") {
    return (await this.ask(`${BASE}?${new URLSearchParams({ q: words })}`)).data;
  }

  // Its state, null where there is none.
  async find(id) {
    try {
      const { revision, state } = await this.ask(`${BASE}/${id}`);
      this.revisions[id] = revision;
      return state;
    } catch (error) {
      if (error.code === "not_found") return null;
      throw error;
    }
  }

  // One after the other: each save continues the revision that the one before has made. Returns the id
  // that it is kept under: another one where the conversation was changed or deleted elsewhere since.
  save(id, state) {
    const body = JSON.stringify(state); // As it is now.
    const saved = this.last.then(() => this.put(id, body));
    this.last = saved.catch(() => {});
    return saved;
  }

  async put(wanted, body) {
    const id = this.moved[wanted] ?? wanted;
    try {
      const url = `${BASE}/${id}?revision=${this.revisions[id] ?? 0}`;
      this.revisions[id] = (await this.ask(url, { method: "PUT", body })).revision;
      return id;
    } catch (error) {
      if (!ELSEWHERE.includes(error.code)) throw error;
      this.moved[wanted] = newId();
      return this.put(wanted, body);
    }
  }

  async remove(id) {
    await this.ask(`${BASE}/${id}`, { method: "DELETE" });
  }

  async ask(url, options = {}) {
    const headers = { ...this.headers, ...(options.body ? { "Content-Type": "application/json" } : {}) };
    let answer;
    try {
      answer = await fetch(url, { ...options, headers });
    } catch {
      throw new ConversationError({ message: "The server does not answer: the conversation is not kept now." });
    }
    if (answer.status === 204) return null;
    const body = await answer.json().catch(() => null);
    if (!answer.ok || body === null) throw new ConversationError(body?.error, answer.status);
    return body;
  }

  // The one that this tab shows: a reload brings it back.
  current() {
    return sessionStorage.getItem(this.place) ?? "";
  }

  setCurrent(id) {
    sessionStorage.setItem(this.place, id);
  }
}

// What is kept of the page, and nothing else.
export function stateOf({ model, beside, account, system, sampling, thinking, tools, schema, turns }) {
  return { model, beside, account, system, sampling, thinking, tools, schema, turns: turns.map(turnOf) };
}

function turnOf(turn) {
  const calls = (turn.calls ?? []).filter(Boolean);
  // Those beside an answer have none beside them.
  const beside = turn.beside?.map(({ beside: _none, ...answer }) => turnOf(answer));
  return turn.role === "user" ? turn : { ...turn, calls, beside };
}

// A random UUID; ``crypto.randomUUID`` is not there on pages that came by plain HTTP.
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
