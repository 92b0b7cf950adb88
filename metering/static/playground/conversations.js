// Conversations stay in the browser: in its local storage, for each user apart.

const MOST_KEPT = 50;

export class Conversations {
  constructor(user) {
    this.place = `helexa-playground:${user}`;
  }

  list() {
    return JSON.parse(localStorage.getItem(this.place) || "[]");
  }

  // The newest first. Images are what fills a browser's storage: where it is full, older ones go.
  save(conversation) {
    let kept = [conversation, ...this.list().filter(({ id }) => id !== conversation.id)];
    kept = kept.slice(0, MOST_KEPT);
    while (kept.length) {
      try {
        localStorage.setItem(this.place, JSON.stringify(kept));
        return true;
      } catch {
        kept.pop();
      }
    }
    return false;
  }

  // The one that this tab shows: a reload brings it back.
  current() {
    return sessionStorage.getItem(this.place) ?? "";
  }

  setCurrent(id) {
    sessionStorage.setItem(this.place, id);
  }

  find(id) {
    return this.list().find((conversation) => conversation.id === id);
  }

  remove(id) {
    const kept = this.list().filter((conversation) => conversation.id !== id);
    localStorage.setItem(this.place, JSON.stringify(kept));
  }
}

export function newId() {
  return `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`;
}

export function titleOf(turns) {
  const first = turns.find((turn) => turn.role === "user")?.text ?? "";
  return first.trim().slice(0, 60) || "New conversation";
}
