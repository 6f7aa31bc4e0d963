/* ---- probabilities of tokens, and what two models think of each other's ---- */

const LEVELS = [0.8, 0.5, 0.25, 0.1, 0.03];
const level = (p) => LEVELS.filter((bound) => p < bound).length;
const percent = (p) => (p >= 0.9995 ? "100" : (100 * p).toFixed(p < 0.1 ? 1 : 0)) + " %";
const visible = (text) => text.replace(/\n/g, "↵").replace(/\t/g, "⇥") || "·";

/* Whether the other model's likeliest token is this one. */
const isAgreed = (token) => token.other.logprob >= Math.max(...token.other.top.map((o) => o.logprob));

function shadeToken(span, token, byOther) {
  const logprob = byOther && token.other ? token.other.logprob : token.logprob;
  span.className = "p" + level(Math.exp(logprob)) + (token.other && !isAgreed(token) ? " other" : "") + (token.parted ? " parted" : "");
}

function tokenView(answer, byOther) {
  const view = make("div", { className: "tokens", tabIndex: 0, role: "group", "aria-label": "Tokens shaded by probability" });
  answer.tokens.forEach((token, i) => {
    const span = make("span", {}, token.text);
    span.dataset.i = i;
    shadeToken(span, token, byOther);
    view.append(span);
  });
  if (!answer.tokens.length) view.append(answer.text);
  return view;
}

/* ---- the tip at a token ---- */

function showTip(span, token, name, otherName) {
  const tip = byId("tip"), rows = [];
  const row = (text, p) => make("tr", {}, make("td", {}, visible(text)), make("td", {}, percent(Math.exp(p))));
  rows.push(make("p", {}, name + ":"), make("table", {}, row(token.text, token.logprob),
    ...token.top.filter((o) => o.text !== token.text).slice(0, 4).map((o) => row(o.text, o.logprob))));
  if (token.other) {
    rows.push(make("p", {}, otherName + ":"), make("table", {}, row(token.text, token.other.logprob),
      ...token.other.top.filter((o) => o.text !== token.text).slice(0, 3).map((o) => row(o.text, o.logprob))));
  }
  tip.replaceChildren(...rows);
  tip.hidden = false;
  const box = span.getBoundingClientRect(), own = tip.getBoundingClientRect();
  const top = box.bottom + 8 + own.height < innerHeight ? box.bottom + 8 : box.top - 8 - own.height;
  tip.style.left = Math.max(8, Math.min(box.left, innerWidth - own.width - 8)) + "px";
  tip.style.top = Math.max(8, top) + "px";
}

const hideTip = () => { byId("tip").hidden = true; };

/* Pointing and arrow keys; `names()` gives the model's name and the other's. */
function listenToTokens(holder, answer, names) {
  const current = () => holder.querySelector(".at");
  const point = (span) => {
    current()?.classList.remove("at");
    if (!span) return hideTip();
    span.classList.add("at");
    showTip(span, answer.tokens[span.dataset.i], ...names());
  };
  const tokenAt = (event) => event.target.closest?.(".tokens span[data-i]");
  holder.addEventListener("mouseover", (event) => { if (tokenAt(event)) point(tokenAt(event)); });
  holder.addEventListener("mouseleave", () => point(null));
  holder.addEventListener("click", (event) => { if (tokenAt(event)) point(tokenAt(event)); });
  holder.addEventListener("focusout", () => point(null));
  holder.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !event.target.classList.contains("tokens")) return;
    const spans = [...event.target.querySelectorAll("span[data-i]")], at = spans.indexOf(current());
    event.preventDefault();
    point(spans[Math.max(0, Math.min(spans.length - 1, at < 0 ? 0 : at + step))]);
  });
}

function legend(compared, byOther, toggle) {
  const items = LEVELS.map((bound, i) => make("span", {}, make("i", { className: "p" + (i + 1) }), (i ? "" : "below ") + percent(bound)));
  const box = make("div", { className: "legend" }, make("span", {}, "Probability"), ...items);
  if (compared) {
    const button = make("button", { type: "button" }, byOther ? "Shaded by the other model" : "Shaded by its own model");
    button.addEventListener("click", toggle);
    box.append(make("span", {}, "dotted: the other model would choose otherwise"), button);
  }
  return box;
}

/* ---- agreement ---- */

/* What `model` thinks of an answer's tokens; they get `other`. */
async function scoreBy(model, answer, promptIds, signal) {
  const ids = answer.tokens.map((t) => t.id), prompt = [...promptIds, ...ids];
  const reply = await requestJson("/v1/completions", { model, prompt, max_tokens: 0, echo: true, logprobs: 4 }, signal);
  const { token_logprobs: scores, top_logprobs: tops } = reply.choices[0].logprobs;
  answer.tokens.forEach((token, i) => {
    const at = promptIds.length + i;
    token.other = { logprob: scores[at], top: Object.entries(tops[at]).map(([text, logprob]) => ({ text, logprob })) };
  });
}

function markParting(a, b) {
  let n = 0;
  while (n < a.tokens.length && n < b.tokens.length && a.tokens[n].id === b.tokens[n].id) n++;
  for (const answer of [a, b]) if (answer.tokens[n]) answer.tokens[n].parted = true;
  return n;
}

const mean = (list) => list.reduce((sum, x) => sum + x, 0) / list.length;

function agreement(turn) {
  const [a, b] = turn.answers, same = markParting(a, b);
  const all = same === a.tokens.length && same === b.tokens.length;
  const lines = turn.answers.map((answer, i) => {
    const other = turn.answers[1 - i], agreed = answer.tokens.filter(isAgreed).length;
    return make("div", {}, make("strong", {}, other.model), " would choose ", make("strong", {}, percent(agreed / answer.tokens.length)),
      " of " + answer.model + "'s tokens (" + agreed + " of " + answer.tokens.length + "); mean probability ",
      make("strong", {}, percent(mean(answer.tokens.map((t) => Math.exp(t.logprob))))), " its own, ",
      make("strong", {}, percent(mean(answer.tokens.map((t) => Math.exp(t.other.logprob))))), " the other's");
  });
  const fill = make("i");
  fill.style.width = 100 * a.tokens.filter(isAgreed).length / a.tokens.length + "%";
  return make("div", { className: "agree" }, make("div", { className: "bar", role: "presentation" }, fill),
    make("div", {}, all ? "Both answers are the same." : same ? "The first " + same + (same === 1 ? " token is" : " tokens are") + " the same." : "The answers part at the first token."),
    ...lines);
}
