// The talk as it is drawn. The Markdown of an answer comes as the server's HTML: each part of it once it
// is whole; what still grows stands below as it was written. The talk's end is kept in sight while it
// grows, until the reader scrolls up from it. Who has scrolled back to it is followed again.

const FENCE = /^\s*(?:```|~~~)/;
const WORDS =
  "abstract and as async await bool break case catch class const continue def default defer del do elif else " +
  "enum except export extends false finally float fn for from func function go if impl import in int interface " +
  "is lambda let loop match mod mut new nil none not null or package pass private protected pub public raise " +
  "return self static string struct super switch this throw trait true try type use var void where while with yield " +
  "select insert update delete from where join group order by create table values into";
const KEYWORDS = new Set(WORDS.split(" "));
const HASHED = ["python", "py", "bash", "sh", "shell", "yaml", "yml", "toml", "ruby", "perl", "r"];
const TOKEN = /(\/\*[\s\S]*?(?:\*\/|$))|(\/\/[^\n]*)|(#[^\n]*)|(--[^\n]*)|("(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|`(?:\\.|[^`\\])*`?)|(\b\d[\w.]*)|([A-Za-z_]\w*)/g;

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

// Code in coloured spans: comments, texts, numbers and the usual keywords.
function colour(code) {
  const language = /language-(\S+)/.exec(code.className)?.[1].toLowerCase() ?? "";
  const text = code.textContent;
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(TOKEN)) {
    const kind = kindOf(found, language);
    if (!kind) continue;
    const span = Object.assign(document.createElement("span"), { className: `pg-in-${kind}`, textContent: found[0] });
    nodes.push(text.slice(end, found.index), span);
    end = found.index + found[0].length;
  }
  code.replaceChildren(...nodes, text.slice(end));
}

function kindOf([, block, slashes, hash, dashes, quoted, number, word], language) {
  const isHashed = HASHED.includes(language);
  if (block || slashes) return isHashed ? "" : "comment";
  if (hash) return isHashed ? "comment" : "";
  if (dashes) return language === "sql" || language === "lua" ? "comment" : "";
  if (quoted) return "string";
  if (number) return "number";
  const isKeyword = KEYWORDS.has(language === "sql" || language === "python" ? word.toLowerCase() : word);
  return isKeyword ? "keyword" : "";
}

const NEAR_THE_END_PX = 120;
const DRAWN = { subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: ["open"] };

export class Following {
  // `turns`, the talk, stands above `composer`, which sticks to the window's lower edge.
  constructor(turns, composer) {
    this.turns = turns;
    this.composer = composer;
    this.turnTo(false);
    new MutationObserver((changes) => this.lookAfter(changes)).observe(turns, DRAWN);
    const sizes = new ResizeObserver(() => this.showTheEnd());
    sizes.observe(turns);
    sizes.observe(composer);
    // What the page draws is followed before its scrolling is reported: this is the reader's.
    addEventListener("scroll", () => this.turnTo(this.isNearTheEnd()), { passive: true });
  }

  // An answer is asked for: it is followed where the end is in sight now.
  begin() {
    this.turnTo(this.isOn || this.isNearTheEnd());
  }

  end() {
    this.turnTo(false);
  }

  // A reader who unfolds something long wants to read its beginning.
  lookAfter(changes) {
    const isUnfolded = changes.some(({ attributeName }) => attributeName === "open");
    if (isUnfolded && !this.isNearTheEnd()) this.turnTo(false);
    this.showTheEnd();
  }

  // While the end is followed, the browser does not keep what stands above it in place.
  turnTo(isOn) {
    this.isOn = isOn;
    document.documentElement.style.overflowAnchor = isOn ? "none" : "";
  }

  // How far the talk's end lies below the composer. What stands beside the talk may be longer.
  belowTheComposer() {
    return this.turns.getBoundingClientRect().bottom - this.composer.getBoundingClientRect().top;
  }

  isNearTheEnd() {
    return this.belowTheComposer() < NEAR_THE_END_PX;
  }

  showTheEnd() {
    const top = Math.max(0, Math.ceil(this.belowTheComposer()));
    if (this.isOn) scrollBy({ top, behavior: "instant" });
  }
}
