// The page's state and what its buttons do.

import { Api, keeping, newId } from "./api.js";
import { asCode, LANGUAGES } from "./as_code.js";
import { AnswerReader, FieldError, inWords, newAnswer, requestOf } from "./chat.js";
import { Following, RenderedText } from "./talk.js";

const ASK_AGAIN_MS = 1000;
const MODELS_MS = 15_000;
const COPIED_MS = 2000;
const RECORD_TIMES = 60;
const MOST_BESIDE = 2;
const MOST_IMAGE_BYTES = 10 * 1024 * 1024;
const WORDS = { unloaded: "not loaded", outdated: "loaded by earlier settings" };
const SAMPLING = {
  temperature: "", top_p: "", top_k: "", min_p: "", repetition_penalty: "",
  max_tokens: "", seed: "", stop: "",
};

function playground(settings, csrfToken) {
  const api = new Api(csrfToken);
  const drawn = new WeakMap(); // By the element of an answer's text.
  let following; // Of the page, once it is drawn.
  let over = Promise.resolve(); // The end of the answer that is being written, saved.
  return {
    ...keeping(api, settings.user),
    accounts: settings.accounts,
    account: settings.accounts[0] ?? "",
    models: [],
    hasAsked: false, // Whether the server has said which models there are.
    model: "",
    isModelAsked: false, // By the page's address.
    beside: [], // Models that answer the same, at most MOST_BESIDE.
    system: "",
    sampling: { ...SAMPLING },
    thinking: "",
    tools: "",
    schema: "",
    draft: "",
    images: [],
    turns: [],
    id: newId(),
    problem: "",
    outage: "",
    waiting: "",
    language: "curl",
    languages: LANGUAGES,
    code: "",
    stopper: null,

    async init() {
      const part = (css) => this.$root.querySelector(css);
      following = new Following(part(".pg-turns"), part(".pg-ask"));
      const asked = new URLSearchParams(location.search).get("model");
      this.isModelAsked = asked !== null;
      this.model = asked ?? localStorage.getItem("helexa-playground-model") ?? "";
      await this.open();
      this.search();
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

    get readyModel() {
      return this.models.find(({ status }) => status === "ready");
    },

    get seesImages() {
      return isAbleTo(this.card, "vision");
    },

    get canThink() {
      return this.card?.reasoning ?? false;
    },

    async refreshModels() {
      if (!this.account) return;
      try {
        const all = await api.models(this.account);
        this.models = all.filter((card) => !card.capabilities || isAbleTo(card, "text"));
        this.outage = "";
        // The page opens on a model that is ready, unless another one was asked for or talked to.
        const isFree = !this.hasAsked && !this.isModelAsked && !this.turns.length;
        if (isFree && this.card?.status !== "ready") this.model = (this.readyModel ?? this.card)?.id ?? "";
        this.hasAsked = true;
      } catch (error) {
        this.outage = error.message;
      }
      if (!this.card) this.model = (this.readyModel ?? this.models[0])?.id ?? "";
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
      following.begin();
      if (!this.model) await this.refreshModels();
      let request;
      try {
        if (!this.model) throw new FieldError("There is no model to ask: an operator adds one.");
        request = this.requestFor(this.model, this.turns);
      } catch (error) {
        this.problem = error.message;
        return false;
      }
      this.problem = "";
      localStorage.setItem("helexa-playground-model", this.model);
      const others = this.beside.filter((name) => name && name !== this.model);
      const asked = this.turns.slice();
      this.turns.push({ ...newAnswer(this.model), beside: [...new Set(others)].map(newAnswer) });
      const turn = this.turns.at(-1); // As Alpine sees it: changes of the bare object are not.
      this.stopper = new AbortController();
      const { signal } = this.stopper;
      let isOver;
      over = new Promise((resolve) => (isOver = resolve));
      this.keep(); // A page that is left meanwhile has the question.
      this.tellWaiting(turn, signal);
      const requests = [request, ...turn.beside.map(({ model }) => this.requestFor(model, asked))];
      const answers = [turn, ...turn.beside];
      await Promise.all(answers.map((one, place) => this.stream(one, requests[place], signal)));
      this.stopper = null;
      this.waiting = "";
      await this.keep();
      isOver();
      this.refreshModels();
      return true;
    },

    // What the page would ask of this model. Throws FieldError.
    requestFor(model, turns) {
      const { system, sampling, thinking, tools, schema } = this;
      const card = this.models.find(({ id }) => id === model);
      const mayThink = !card?.capabilities || isAbleTo(card, "reasoning");
      return requestOf({ model, system, sampling, thinking, tools, schema, mayThink }, turns);
    },

    // Fills one answer as it comes.
    async stream(turn, request, signal) {
      const reader = new AnswerReader(turn, () => performance.now());
      try {
        const asked = { ...request, stream: true, stream_options: { include_usage: true } };
        const keepId = (id) => (turn.requestId = id);
        for await (const chunk of api.chat(asked, this.account, signal, keepId)) {
          reader.add(chunk);
        }
      } catch (error) {
        turn.error = signal.aborted ? "Stopped." : error.message;
      }
      reader.end();
      this.countByRecord(turn, reader);
    },

    // The record of a request is written a moment after its end.
    async countByRecord(turn, reader) {
      for (let times = 0; times < RECORD_TIMES && turn.requestId; times += 1) {
        await new Promise((resolve) => setTimeout(resolve, ASK_AGAIN_MS));
        const record = await api.record(turn.requestId);
        if (record === null) continue;
        reader.countByRecord(record);
        if (this.turns.some((one) => this.answersOf(one).includes(turn))) this.keep();
        return;
      }
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

    // Ends what is being written, and saves it, before the page shows another conversation.
    async leave() {
      following.end();
      this.stop();
      await over;
    },

    get mayCompare() {
      return this.models.length > 1 && this.beside.length < Math.min(MOST_BESIDE, this.models.length - 1);
    },

    compare() {
      const others = this.models.filter(({ id }) => id !== this.model && !this.beside.includes(id));
      const next = others.find(({ status }) => status === "ready") ?? others[0];
      this.beside.push(next.id);
    },

    answersOf: (turn) => [turn, ...(turn.beside ?? [])],

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
        this.code = asCode(this.language, this.requestFor(this.model, asked), settings.base_url);
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

    // What the user wrote is shown as it is.
    showText(element, turn) {
      if (turn.role === "user") {
        drawn.delete(element);
        element.textContent = turn.text;
        return;
      }
      if (!drawn.has(element)) drawn.set(element, new RenderedText(element, (text) => api.htmlOf(text)));
      drawn.get(element).show(turn.text, !turn.isRunning);
    },

    copyCode({ target }) {
      if (target.matches(".pg-copy")) this.copy(target.nextElementSibling.textContent.trimEnd(), target);
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
  window.Alpine.data("playground", () => playground(settings, place.dataset.csrf));
  place.append(document.getElementById("playground-page").content.cloneNode(true));
}
