// What the page does with conversations: keeps what it shows, lists, opens and deletes them.

import { newId, stateOf } from "./conversations.js";

// A part of the page's state; ``leave`` and what is kept are the page's.
export function keeping(conversations) {
  return {
    kept: [],
    searched: "",
    keepProblem: "",
    isForked: false, // The conversation was changed elsewhere: this one is another.

    // Saves what the page shows. It stays on the page where the server refuses it.
    async keep() {
      const { id } = this;
      try {
        const keptAs = await conversations.save(id, stateOf(this));
        if (!this.isForked) this.keepProblem = "";
        if (this.id === id && keptAs !== id) {
          Object.assign(this, { id: keptAs, isForked: true });
          this.keepProblem = "The conversation was changed or deleted elsewhere: this one is kept as another.";
        }
        if (this.id === keptAs) conversations.setCurrent(keptAs);
      } catch (error) {
        this.keepProblem = error.message;
      }
      await this.search();
    },

    async search() {
      const words = this.searched;
      try {
        const found = await conversations.list(words);
        if (words === this.searched) this.kept = found;
      } catch (error) {
        this.keepProblem ||= error.message;
      }
    },

    async open(id) {
      if (!id) return;
      await this.leave();
      try {
        const state = await conversations.find(id);
        if (!state) return;
        const account = this.accounts.includes(state.account) ? state.account : this.account;
        const turns = state.turns.map(ended);
        Object.assign(this, { problem: "", keepProblem: "", isForked: false, ...state, account, turns, id });
        conversations.setCurrent(id);
      } catch (error) {
        this.keepProblem = error.message;
      }
    },

    async start() {
      const field = this.$refs.draft;
      await this.leave();
      Object.assign(this, { id: newId(), turns: [], draft: "", images: [], problem: "" });
      Object.assign(this, { keepProblem: "", isForked: false });
      conversations.setCurrent("");
      field.focus();
    },

    async remove(id) {
      const field = this.$refs.search; // Once the pressed button is gone, it finds nothing.
      try {
        await conversations.remove(id);
        if (id === this.id) await this.start();
      } catch (error) {
        this.keepProblem = error.message;
      }
      await this.search();
      field.focus();
    },
  };
}

// An answer that the page was left in the middle of.
function ended(turn) {
  if (!turn.isRunning) return turn;
  const error = turn.error || "The page was left before the answer ended.";
  return { ...turn, error, isRunning: false, beside: turn.beside?.map(ended) };
}
