// Markdown as models write it, in blocks and spans that the page sets as text: nothing of an answer
// becomes HTML. What is not known here stays as it was written. Pure.

const HEADING = /^#{1,6}\s+(.*)$/;
const ITEM = /^(\s*)([-*+]|\d+[.)])\s+(.*)$/;
const SPAN = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|(?<![\w*])\*(?![\s*])([^*\n]*[^*\s])\*(?![\w*])/g;

// Text -> [{kind: "text" | "heading" | "item" | "table" | "code", depth, spans}].
export function blocksOf(text) {
  return text.split(/^```/m).flatMap((part, index) => (index % 2 ? codeOf(part) : proseOf(part)));
}

function codeOf(part) {
  const end = part.indexOf("\n"); // Before it stands the language.
  return [block("code", [span("text", end < 0 ? part : part.slice(end + 1).trimEnd())])];
}

function proseOf(part) {
  const blocks = [];
  let lines = [];
  const flush = (kind = "text") => {
    if (lines.length) blocks.push(block(kind, spansOf(lines.join("\n"))));
    lines = [];
  };
  let isTable = false;
  for (const line of part.split("\n")) {
    const isRow = /^\s*\|/.test(line);
    if (isRow !== isTable) flush(isTable ? "table" : "text");
    isTable = isRow;
    const heading = HEADING.exec(line);
    const item = ITEM.exec(line);
    if (heading || item || !line.trim()) flush();
    if (heading) blocks.push(block("heading", spansOf(heading[1])));
    else if (item) blocks.push(itemOf(item));
    else if (line.trim()) lines.push(line);
  }
  flush(isTable ? "table" : "text");
  return blocks;
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
    const [whole, code, strong, emphasis] = found;
    if (code !== undefined) spans.push(span("code", code));
    else if (strong !== undefined) spans.push(span("strong", strong));
    else spans.push(span("emphasis", emphasis));
    end = found.index + whole.length;
  }
  if (end < text.length) spans.push(span("text", text.slice(end)));
  return spans;
}

function block(kind, spans, depth = 0) {
  return { kind, depth, spans };
}

function span(kind, text) {
  return { kind, text };
}
