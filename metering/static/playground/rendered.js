// The Markdown of an answer as the server's HTML: each part of it once it is whole. What still grows
// stands below as it was written.

import { highlighted } from "./highlight.js";

const FENCE = /^\s*(?:```|~~~)/;

export class RenderedText {
  // `htmlOf` asks the server for the HTML of a text.
  constructor(element, htmlOf) {
    this.htmlOf = htmlOf;
    this.whole = "";
    this.element = element;
    this.tail = partOf("");
    element.replaceChildren(this.tail);
  }

  show(text, isWhole) {
    if (!text.startsWith(this.whole)) {
      this.whole = "";
      this.element.replaceChildren(this.tail);
    }
    const end = isWhole ? text.length : endOfWholeBlocks(text, this.whole.length);
    if (end > this.whole.length) this.add(text.slice(this.whole.length, end));
    this.whole = text.slice(0, end);
    this.grow(text.slice(end));
  }

  // What is selected stays selected.
  grow(text) {
    const node = this.tail.firstChild;
    if (node && text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
    else this.tail.textContent = text;
  }

  async add(text) {
    const part = partOf(text);
    this.tail.before(part);
    const html = await this.htmlOf(text).catch(() => null);
    if (html === null) return; // It stays as it was written.
    part.innerHTML = html;
    part.classList.remove("pg-text");
    part.querySelectorAll("pre > code").forEach(colour);
  }
}

// Alpine leaves alone what is in it.
function partOf(text) {
  const part = document.createElement("div");
  part.className = "pg-part pg-text";
  part.setAttribute("x-ignore", "");
  part.textContent = text;
  return part;
}

// Behind the last empty line after `start` that is not within code.
function endOfWholeBlocks(text, start) {
  let end = start;
  let place = start;
  let isCode = false;
  for (const line of text.slice(start).split("\n").slice(0, -1)) {
    place += line.length + 1;
    if (FENCE.test(line)) isCode = !isCode;
    if (!isCode && !line.trim()) end = place;
  }
  return end;
}

function colour(code) {
  const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
  const spans = highlighted(code.textContent, language).map(({ kind, text }) => {
    const span = document.createElement("span");
    span.className = `pg-in-${kind}`;
    span.textContent = text;
    return span;
  });
  code.replaceChildren(...spans);
}
