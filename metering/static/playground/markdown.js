// Markdown as models write it, in blocks and spans that the page sets as text: nothing of an answer
// becomes HTML. What is not known here stays as it was written. Pure.

import { highlighted } from "./highlight.js";
import { mathText } from "./math.js";

const HEADING = /^#{1,6}\s+(.*)$/;
const ITEM = /^(\s*)([-*+]|\d+[.)])\s+(.*)$/;
const RULE = /^\s*\|?(\s*:?-+:?\s*\|)*\s*:?-+:?\s*\|?\s*$/; // Below the head of a table.
const DISPLAYED = /\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\]/;
const SPAN = new RegExp(
  [
    "`([^`\\n]+)`",
    "\\*\\*([^*\\n]+)\\*\\*",
    "(?<![\\w*])\\*(?![\\s*])([^*\\n]*[^*\\s])\\*(?![\\w*])",
    "\\[([^\\]\\n]+)\\]\\((https?:\\/\\/[^\\s)]+)\\)",
    "(https?:\\/\\/[^\\s<>()]*[^\\s<>().,;:!?'\"])",
    "\\\\\\((.+?)\\\\\\)",
    "(?<![\\w$])\\$(?![\\s\\d])([^$\\n]*[^$\\s])\\$(?![\\w$])",
  ].join("|"),
  "g",
);

// Text -> [{kind: "text" | "heading" | "item" | "math", depth, spans}, {kind: "code", text, spans},
// {kind: "table", head, rows}]. Cells of tables are lists of spans.
export function blocksOf(text) {
  return text.split(/^```/m).flatMap((part, index) => (index % 2 ? codeOf(part) : mathsOf(part)));
}

function codeOf(part) {
  const end = part.indexOf("\n"); // Before it stands the language.
  const language = end < 0 ? "" : part.slice(0, end).trim();
  const code = end < 0 ? part : part.slice(end + 1).trimEnd();
  return [{ ...block("code", highlighted(code, language)), text: code }];
}

function mathsOf(part) {
  const found = DISPLAYED.exec(part);
  if (!found) return proseOf(part);
  const formula = block("math", [span("math", mathText(found[1] ?? found[2]))]);
  const rest = part.slice(found.index + found[0].length);
  return [...proseOf(part.slice(0, found.index)), formula, ...mathsOf(rest)];
}

function proseOf(part) {
  const blocks = [];
  let lines = [];
  let isTable = false;
  const flush = () => {
    if (lines.length) blocks.push(isTable ? tableOf(lines) : block("text", spansOf(lines.join("\n"))));
    lines = [];
  };
  for (const line of part.split("\n")) {
    const isRow = /^\s*\|/.test(line);
    if (isRow !== isTable) flush();
    isTable = isRow;
    const heading = HEADING.exec(line);
    const item = ITEM.exec(line);
    if (heading || item || !line.trim()) flush();
    if (heading) blocks.push(block("heading", spansOf(heading[1])));
    else if (item) blocks.push(itemOf(item));
    else if (line.trim()) lines.push(line);
  }
  flush();
  return blocks;
}

// Without a rule below its first row a table has no head.
function tableOf(lines) {
  const hasHead = lines.length > 1 && RULE.test(lines[1]);
  const rows = lines.filter((line, index) => !(hasHead && index === 1)).map(cellsOf);
  return { kind: "table", depth: 0, head: hasHead ? rows[0] : [], rows: hasHead ? rows.slice(1) : rows };
}

function cellsOf(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => spansOf(cell.trim().replaceAll("\\|", "|")));
}

function itemOf([, indent, marker, text]) {
  const shown = /\d/.test(marker) ? marker : "•";
  return block("item", [span("text", `${shown} `), ...spansOf(text)], Math.floor(indent.length / 2));
}

function spansOf(text) {
  const spans = [];
  let end = 0;
  for (const found of text.matchAll(SPAN)) {
    if (found.index > end) spans.push(span("text", text.slice(end, found.index)));
    spans.push(spanOf(found));
    end = found.index + found[0].length;
  }
  if (end < text.length) spans.push(span("text", text.slice(end)));
  return spans;
}

function spanOf([, code, strong, emphasis, label, target, bare, tex, dollars]) {
  if (code !== undefined) return span("code", code);
  if (strong !== undefined) return span("strong", strong);
  if (emphasis !== undefined) return span("emphasis", emphasis);
  if (label !== undefined) return { ...span("link", label), url: target };
  if (bare !== undefined) return { ...span("link", bare), url: bare };
  return span("math", mathText(tex ?? dollars));
}

function block(kind, spans, depth = 0) {
  return { kind, depth, spans };
}

function span(kind, text) {
  return { kind, text };
}
