// The page's state and what its buttons do.

import { AnswerReader, inWords, newAnswer } from "./answer.js";
import { Api } from "./api.js";
import { asCode, LANGUAGES } from "./as_code.js";
import { Conversations, newId, titleOf } from "./conversations.js";
import { blocksOf } from "./markdown.js";
import { FieldError, requestOf } from "./request.js";

const ASK_AGAIN_MS = 1000;
const MODELS_MS = 15_000;
const COPIED_MS = 2000;
const MOST_IMAGE_BYTES = 10 * 1024 * 1024;
const WORDS = { unloaded: "not loaded", outdated: "loaded by earlier settings" };
const SAMPLING = {
  temperature: "", top_p: "", top_k: "", min_p: "", repetition_penalty: "",
  max_tokens: "", seed: "", stop: "",
};

function playground(settings, csrfToken, keyUrl) {
  const api = new Api(settings.user, csrfToken, keyUrl);
  const conversations = new Conversations(settings.user);
  return {
    accounts: settings.accounts,
    account: settings.accounts[0] ?? "",
    models: [],
    hasAsked: false, // Whether the server has said which models there are.
    model: "",
    system: "",
    sampling: { ...SAMPLING },
    thinking: "",
    tools: "",
    schema: "",
    draft: "",
    images: [],
    turns: [],
    kept: conversations.list(),
    id: newId(),
    problem: "",
    outage: "",
    waiting: "",
    language: "curl",
    languages: LANGUAGES,
    code: "",
    stopper: null,

    async init() {
      this.model = localStorage.getItem("helexa-playground-model") ?? "";
      this.open(conversations.current());
      for (;;) {
        if (!document.hidden) await this.refreshModels();
        const isLoading = this.card?.status === "loading";
        await new Promise((resolve) => setTimeout(resolve, isLoading ? ASK_AGAIN_MS : MODELS_MS));
      }
    },

    get isRunning() {
      return this.stopper !== null;
    },

    get card() {
      return this.models.find(({ id }) => id === this.model);
    },

    get seesImages() {
      return isAbleTo(this.card, "vision");
    },

    get canThink() {
      return this.card?.reasoning ?? false;
    },

    get mayThink() {
      return !this.card?.capabilities || isAbleTo(this.card, "reasoning");
    },

    async refreshModels() {
      if (!this.account) return;
      try {
        const all = await api.models(this.account);
        this.models = all.filter((card) => !isAbleTo(card, "embeddings"));
        this.outage = "";
        this.hasAsked = true;
      } catch (error) {
        this.outage = error.message;
      }
      if (!this.card) this.model = this.models[0]?.id ?? "";
    },

    labelOf(card) {
      return card.status === "ready" ? card.id : `${card.id} (${WORDS[card.status] ?? card.status})`;
    },

    // What to expect of the chosen model where it is not ready.
    get stateOfModel() {
      if (!this.card || ["ready", "outdated"].includes(this.card.status)) return "";
      if (this.card.status === "unloaded") return "Not loaded: the first message loads it.";
      return progressOf(this.card);
    },

    async send() {
      if (this.isRunning || (!this.draft.trim() && !this.images.length)) return;
      this.turns.push({ role: "user", text: this.draft, images: this.images });
      this.draft = "";
      this.images = [];
      if (await this.answer()) return;
      const { text, images } = this.turns.pop(); // A field is wrong: nothing was asked.
      Object.assign(this, { draft: text, images });
    },

    // Asks for the answer to the turns as they stand; whether it could be asked for.
    async answer() {
      if (!this.model) await this.refreshModels();
      let request;
      try {
        if (!this.model) throw new FieldError("There is no model to ask: an operator adds one.");
        request = requestOf(this, this.turns);
      } catch (error) {
        this.problem = error.message;
        return false;
      }
      this.problem = "";
      localStorage.setItem("helexa-playground-model", this.model);
      this.turns.push(newAnswer());
      const turn = this.turns.at(-1); // As Alpine sees it: changes of the bare object are not.
      const reader = new AnswerReader(turn, () => performance.now());
      this.stopper = new AbortController();
      const { signal } = this.stopper;
      this.tellWaiting(turn, signal);
      try {
        const asked = { ...request, stream: true, stream_options: { include_usage: true } };
        for await (const chunk of api.chat(asked, this.account, signal)) reader.add(chunk);
      } catch (error) {
        turn.error = signal.aborted ? "Stopped." : error.message;
      }
      reader.end();
      this.stopper = null;
      this.waiting = "";
      this.keep();
      this.refreshModels();
      return true;
    },

    // Until the first token comes: what the model is doing, loading above all.
    async tellWaiting(turn, signal) {
      const name = this.model;
      for (;;) {
        await new Promise((resolve) => setTimeout(resolve, ASK_AGAIN_MS));
        if (signal.aborted || !turn.isRunning || turn.text || turn.thinking) break;
        const card = await api.model(name, this.account).catch(() => null);
        if (turn.isRunning && card && card.status !== "ready") this.waiting = progressOf(card);
        else this.waiting = "";
      }
      this.waiting = "";
    },

    stop() {
      this.stopper?.abort();
    },

    async regenerate(index) {
      this.turns.splice(index);
      await this.answer();
    },

    // Puts a turn of the user's back into the field; what followed it goes once it is sent.
    edit(index) {
      const turn = this.turns[index];
      this.draft = turn.text;
      this.images = turn.images ?? [];
      this.turns.splice(index);
      this.$refs.draft.focus();
    },

    keep() {
      const { id, model, account, system, sampling, thinking, tools, schema, turns } = this;
      const conversation = { id, title: titleOf(turns), model, account, system, sampling,
        thinking, tools, schema, turns };
      if (!conversations.save(JSON.parse(JSON.stringify(conversation)))) {
        this.problem = "This browser has no room to keep the conversation.";
      }
      conversations.setCurrent(id);
      this.kept = conversations.list();
    },

    open(id) {
      this.stop();
      const found = conversations.find(id);
      if (!found) return;
      const { title, ...state } = found;
      Object.assign(this, state);
      conversations.setCurrent(id);
    },

    start() {
      this.stop();
      Object.assign(this, { id: newId(), turns: [], draft: "", images: [], problem: "" });
      conversations.setCurrent("");
      this.$refs.draft.focus();
    },

    remove(id) {
      conversations.remove(id);
      this.kept = conversations.list();
      if (id === this.id) this.start();
    },

    async addImages(files) {
      for (const file of files) {
        if (file.size > MOST_IMAGE_BYTES) {
          this.problem = `${file.name} is larger than ${MOST_IMAGE_BYTES / 1024 ** 2} MiB.`;
        } else this.images.push(await dataUrl(file));
      }
    },

    // For exactly the request that the page would send now, or has sent last.
    showCode() {
      const drafted = this.draft.trim() ? [{ role: "user", text: this.draft, images: this.images }] : [];
      const asked = this.turns.at(-1)?.role === "assistant" && !drafted.length
        ? this.turns.slice(0, -1)
        : [...this.turns, ...drafted];
      try {
        this.code = asCode(this.language, requestOf(this, asked), settings.base_url);
        this.problem = "";
      } catch (error) {
        this.code = "";
        this.problem = error.message;
      }
    },

    copy(text, button) {
      helexaCopy(text, () => showCopied(button));
    },

    statsOf: (turn) => inWords(turn.stats),

    // An answer as Markdown, what the user wrote as it is.
    blocksOf(turn) {
      if (turn.role === "assistant") return blocksOf(turn.text);
      return turn.text ? [{ kind: "text", depth: 0, spans: [{ kind: "text", text: turn.text }] }] : [];
    },
  };
}

function showCopied(button) {
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), COPIED_MS);
}

// Nobody knows what a model can do that was never loaded: its capabilities are null.
function isAbleTo(card, capability) {
  return card?.capabilities?.includes(capability) ?? false;
}

function progressOf({ status, status_reason: reason, progress }) {
  if (!progress) return reason ? `The model is ${status}: ${reason}` : `The model is ${status}…`;
  const share = progress.total ? ` ${Math.floor((100 * progress.done) / progress.total)} %` : "";
  return `The model is ${status}: ${progress.stage}${share}`;
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

// Alpine has started before modules run, and brings to life what is added later.
const place = document.getElementById("playground");
if (place) {
  const settings = JSON.parse(document.getElementById("playground-settings").textContent);
  const { csrf, keyUrl } = place.dataset;
  window.Alpine.data("playground", () => playground(settings, csrf, keyUrl));
  place.append(document.getElementById("playground-page").content.cloneNode(true));
}
