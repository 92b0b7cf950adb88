// Code of answers in coloured spans: comments, texts, numbers and the usual keywords. Pure.

const WORDS =
  "abstract and as async await bool break case catch class const continue def default defer del do elif else " +
  "enum except export extends false finally float fn for from func function go if impl import in int interface " +
  "is lambda let loop match mod mut new nil none not null or package pass private protected pub public raise " +
  "return self static string struct super switch this throw trait true try type use var void where while with yield " +
  "select insert update delete from where join group order by create table values into";
const KEYWORDS = new Set(WORDS.split(" "));
const HASHED = ["python", "py", "bash", "sh", "shell", "yaml", "yml", "toml", "ruby", "perl", "r"];
const TOKEN = /(\/\*[\s\S]*?(?:\*\/|$))|(\/\/[^\n]*)|(#[^\n]*)|(--[^\n]*)|("(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|`(?:\\.|[^`\\])*`?)|(\b\d[\w.]*)|([A-Za-z_]\w*)/g;

// Text -> [{kind: "text" | "comment" | "string" | "number" | "keyword", text}].
export function highlighted(text, language) {
  const spans = [];
  let end = 0;
  for (const found of text.matchAll(TOKEN)) {
    const kind = kindOf(found, language.toLowerCase());
    if (!kind) continue;
    if (found.index > end) spans.push({ kind: "text", text: text.slice(end, found.index) });
    spans.push({ kind, text: found[0] });
    end = found.index + found[0].length;
  }
  if (end < text.length) spans.push({ kind: "text", text: text.slice(end) });
  return spans;
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
