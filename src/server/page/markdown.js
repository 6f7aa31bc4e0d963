"use strict";
/* Markdown of a model as elements. Text becomes text nodes only, so nothing a model writes can become markup. */

const make = (name, props = {}, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(props)) {
    if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
};
const byId = (id) => document.getElementById(id);

/* ---- code ---- */

const KEYWORDS = new Set(("abstract and as assert async await auto bool break case catch char class const constexpr continue def default del do " +
  "double elif else enum except export extends extern false False final finally float fn for from func function if impl import in inline int " +
  "interface is lambda let long match mod module mut namespace new nil None not null nullptr or package pass private protected pub public raise " +
  "return self short signed size_t sizeof static struct super switch template this throw throws trait true True try type typedef typename union " +
  "unsigned use using var void volatile where while with yield select from insert update delete create table join then fi done echo").split(" "));
const HASH_COMMENTS = /^(py|python|sh|bash|zsh|shell|rb|ruby|yaml|yml|toml|r|perl|make|makefile|dockerfile|ini|conf)$/i;

function colourCode(target, source, language) {
  const comment = HASH_COMMENTS.test(language) ? "#[^\\n]*" : /^(sql|lua|haskell|hs)$/i.test(language) ? "--[^\\n]*" : "\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)";
  const parts = new RegExp(`(${comment})|("(?:\\\\.|[^"\\\\\\n])*"?|'(?:\\\\.|[^'\\\\\\n])*'?|\`(?:\\\\.|[^\`\\\\])*\`?)|(\\b\\d[\\w.]*)|([A-Za-z_]\\w*)`, "g");
  let at = 0;
  for (const hit of source.matchAll(parts)) {
    const kind = hit[1] ? "c" : hit[2] ? "s" : hit[3] ? "n" : KEYWORDS.has(hit[4]) ? "k" : "";
    if (!kind) continue;
    if (hit.index > at) target.append(source.slice(at, hit.index));
    target.append(make("span", { className: kind }, hit[0]));
    at = hit.index + hit[0].length;
  }
  target.append(source.slice(at));
}

function codeBlock(source, language) {
  const copy = make("button", { type: "button" }, "Copy");
  copy.addEventListener("click", () => copyText(source, copy));
  const code = make("code");
  if (/^(text|txt|plain|md|markdown)?$/i.test(language)) code.append(source);
  else colourCode(code, source, language);
  return make("div", { className: "block" }, make("div", {}, make("span", {}, language || "text"), copy), make("pre", { tabIndex: 0 }, code));
}

async function copyText(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => { button.textContent = before; }, 1200);
}

/* ---- within a line ---- */

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|__(?=\S)([\s\S]*?\S)__(?!\w)|~~(?=\S)([\s\S]*?\S)~~|(?<!\w)\*(?=[^\s*])([^*]*?[^\s*])\*(?![*\w])|\b_(?=\S)([^_]*?\S)_\b|\[([^\]]+)\]\(([^)\s]+)(?:\s+"[^"]*")?\)|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"])|\\([\\`*_{}[\]()#+.!~|>-])| {2,}\n/;

/* Only addresses that cannot run anything. */
const isSafeLink = (url) => /^(https?:\/\/|mailto:)/i.test(url);

function link(url, words) {
  return isSafeLink(url) ? make("a", { href: url, rel: "noopener noreferrer nofollow", target: "_blank" }, ...words) : make("span", {}, ...words);
}

function inline(text, depth = 0) {
  const nodes = [];
  while (text) {
    const hit = depth < 8 ? INLINE.exec(text) : null;
    if (!hit) break;
    if (hit.index) nodes.push(text.slice(0, hit.index));
    const inner = (part) => inline(part, depth + 1);
    if (hit[2] !== undefined) nodes.push(make("code", {}, hit[2].replace(/^ (.*) $/, "$1")));
    else if (hit[3] ?? hit[4]) nodes.push(make("strong", {}, ...inner(hit[3] ?? hit[4])));
    else if (hit[5]) nodes.push(make("del", {}, ...inner(hit[5])));
    else if (hit[6] ?? hit[7]) nodes.push(make("em", {}, ...inner(hit[6] ?? hit[7])));
    else if (hit[8]) nodes.push(link(hit[9], inner(hit[8])));
    else if (hit[10]) nodes.push(link(hit[10], [hit[10]]));
    else if (hit[11]) nodes.push(hit[11]);
    else nodes.push(make("br"));
    text = text.slice(hit.index + hit[0].length);
  }
  if (text) nodes.push(text);
  return nodes;
}

/* ---- blocks ---- */

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const TABLE_LINE = /^\s*\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?\s*$/;

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());

function table(lines) {
  const row = (name, line) => make("tr", {}, ...cells(line).map((cell) => make(name, {}, ...inline(cell))));
  const body = lines.slice(2).map((line) => row("td", line));
  return make("div", { className: "scroll" }, make("table", {}, make("thead", {}, row("th", lines[0])), make("tbody", {}, ...body)));
}

/* A list from lines[from]: its element and the line behind it. */
function list(lines, from, depth) {
  const first = ITEM.exec(lines[from]), indent = first[1].length, ordered = /\d/.test(first[2]);
  const element = make(ordered ? "ol" : "ul", ordered ? { start: parseInt(first[2], 10) } : {});
  let at = from;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (!item || item[1].length !== indent || /\d/.test(item[2]) !== ordered) break;
    const inner = [item[3]], content = lines[at].length - item[3].length;
    for (at++; at < lines.length; at++) {
      const line = lines[at], space = line.length - line.trimStart().length;
      if (!line.trim()) {
        const next = lines[at + 1] ?? "";
        if (next.trim() && next.length - next.trimStart().length > indent) inner.push("");
        else if (!ITEM.test(next)) break;
      } else if (space > indent) inner.push(line.slice(Math.min(space, content)));
      else break;
    }
    const li = make("li"), parts = blocks(inner, depth + 1);
    if (parts.length && parts[0].tagName === "P") li.append(...parts[0].childNodes, ...parts.slice(1));
    else li.append(...parts);
    element.append(li);
  }
  return [element, at];
}

function blocks(lines, depth = 0) {
  const out = [];
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) out.push(make("p", {}, ...inline(paragraph.join("\n"))));
    paragraph = [];
  };
  for (let at = 0; at < lines.length;) {
    const line = lines[at], fence = FENCE.exec(line), heading = HEADING.exec(line);
    if (fence) {
      flush();
      let end = at + 1;
      while (end < lines.length && !(lines[end].trim().startsWith(fence[1]) && !lines[end].trim().slice(fence[1].length).trim())) end++;
      out.push(codeBlock(lines.slice(at + 1, end).join("\n"), fence[2]));
      at = end + 1;
    } else if (heading) {
      flush();
      out.push(make("h" + Math.min(5, heading[1].length + 1), {}, ...inline(heading[2])));
      at++;
    } else if (RULE.test(line)) {
      flush();
      out.push(make("hr"));
      at++;
    } else if (/^ {0,3}>/.test(line) && depth < 6) {
      flush();
      const quoted = [];
      while (at < lines.length && /^ {0,3}>/.test(lines[at])) quoted.push(lines[at++].replace(/^ {0,3}> ?/, ""));
      out.push(make("blockquote", {}, ...blocks(quoted, depth + 1)));
    } else if (ITEM.test(line) && depth < 6) {
      flush();
      const [element, next] = list(lines, at, depth);
      out.push(element);
      at = next;
    } else if (line.includes("|") && TABLE_LINE.test(lines[at + 1] ?? "") && cells(line).length === cells(lines[at + 1]).length) {
      flush();
      let end = at + 2;
      while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end++;
      out.push(table(lines.slice(at, end)));
      at = end;
    } else {
      if (line.trim()) paragraph.push(line);
      else flush();
      at++;
    }
  }
  flush();
  return out;
}

/* What reasoning models write before they answer is folded away. */
function markdown(text) {
  const thought = /^\s*<think>\n?([\s\S]*?)(<\/think>|$)/.exec(text);
  if (!thought) return blocks(text.split("\n"));
  const rest = text.slice(thought[0].length);
  return [make("details", { open: !thought[2] }, make("summary", {}, thought[2] ? "Thoughts" : "Thinking …"), ...blocks(thought[1].split("\n"))),
    ...blocks(rest.split("\n"))];
}
