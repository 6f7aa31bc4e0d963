/* ---- settings ---- */

const STORE = "neuronmlp.settings";
const DEFAULTS = { system: "", temperature: 0.7, top_p: 0.95, top_k: 0, min_p: 0, repetition_penalty: 1, max_tokens: 512, seed: "", stop: "",
  plain: false, greedy: true, together: false, theme: "", shade: false, byOther: false };
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens"];

const settings = { ...DEFAULTS };
try {
  Object.assign(settings, JSON.parse(localStorage.getItem(STORE) ?? "{}"));
} catch { /* another program's, or none */ }
const keep = () => localStorage.setItem(STORE, JSON.stringify(settings));

const state = { models: [], turns: [], compare: false, running: null };
const chatting = () => state.models[0]?.chat && !settings.plain;
const shading = () => state.compare || settings.shade;

function sampling() {
  const body = {};
  for (const name of NUMBERS) if (Number.isFinite(Number(settings[name]))) body[name] = Number(settings[name]);
  if (settings.seed !== "") body.seed = Number(settings.seed);
  if (settings.stop) body.stop = [settings.stop];
  if (state.compare && settings.greedy) body.temperature = 0;
  return body;
}

/* ---- what is asked for ---- */

/* The conversation before an answer of a turn; the n-th answer of earlier turns is its own model's. */
function messagesUpTo(turn, n) {
  const messages = settings.system ? [{ role: "system", content: settings.system }] : [];
  for (const t of state.turns) {
    messages.push({ role: "user", content: t.said });
    if (t === turn) break;
    messages.push({ role: "assistant", content: (t.answers[n] ?? t.answers[0]).text });
  }
  return messages;
}

function textUpTo(turn, n) {
  let text = "";
  for (const t of state.turns) {
    text += t.said;
    if (t === turn) break;
    text += (t.answers[n] ?? t.answers[0]).text;
  }
  return text;
}

function bodyFor(turn, n) {
  const body = { model: turn.answers[n].model, ...sampling() };
  if (chatting()) Object.assign(body, { messages: messagesUpTo(turn, n) }, shading() && { logprobs: true, top_logprobs: 5 });
  else Object.assign(body, { prompt: textUpTo(turn, n) }, shading() && { logprobs: 5 });
  return body;
}

async function promptIds(turn, n, signal) {
  const body = chatting() ? { messages: messagesUpTo(turn, n) } : { content: textUpTo(turn, n) };
  return (await requestJson("/tokenize", body, signal)).tokens;
}

/* ---- answers on the page ---- */

const say = (words) => { byId("status").textContent = words; };
const log = byId("log");
const isAtEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 80;
const toEnd = () => { log.scrollTop = log.scrollHeight; };

function button(words, act, hint) {
  const element = make("button", { type: "button", title: hint ?? "" }, words);
  element.addEventListener("click", act);
  return element;
}

function drawAnswer(turn, answer) {
  const follow = isAtEnd(), shaded = shading() && answer.tokens.length > 0;
  answer.view.className = "text" + (answer.running ? " running" : "");
  if (shaded) answer.view.replaceChildren(tokenView(answer, settings.byOther));
  else answer.view.replaceChildren(...markdown(answer.text));
  const last = answer.view.lastElementChild ?? answer.view;
  if (answer.running) (last.tagName === "P" || last === answer.view || shaded ? last : answer.view).classList.add("waiting");
  answer.facts.textContent = factsOf(answer);
  answer.box.querySelector(".error")?.remove();
  if (answer.error) answer.view.after(make("p", { className: "error", role: "alert" }, answer.error));
  answer.acts.hidden = answer.running;
  drawLegend(turn);
  if (follow) toEnd();
}

function drawLegend(turn) {
  const shaded = shading() && turn.answers.every((a) => a.tokens.length && !a.running);
  turn.legend.replaceChildren(...(shaded ? [legend(turn.answers.every((a) => a.tokens[0].other), settings.byOther, () => {
    settings.byOther = !settings.byOther;
    keep();
    redraw();
  })] : []));
}

function answerBox(turn, answer) {
  answer.view = make("div", { className: "text" });
  answer.facts = make("span", { className: "facts" });
  const copy = button("Copy", () => copyText(answer.text, copy), "Copy the answer");
  answer.acts = make("span", {}, copy, button("Regenerate", () => regenerate(turn), "Answer again (Alt R)"));
  answer.box = make("article", { className: "answer", "aria-label": "Answer of " + answer.model }, answer.view,
    make("div", { className: "acts" }, answer.facts, answer.acts));
  if (turn.answers.length > 1) answer.box.prepend(make("h3", {}, answer.model));
  const other = () => turn.answers.find((a) => a !== answer)?.model ?? "";
  listenToTokens(answer.box, answer, () => [answer.model, other()]);
  return answer.box;
}

function drawSaid(turn) {
  const words = make("div", { className: "words" }, turn.said);
  turn.head.replaceChildren(words, make("div", { className: "acts" }, button("Edit", () => edit(turn), "Change this message and answer anew")));
  turn.head.hidden = !turn.said;
}

function drawTurn(turn) {
  turn.head = make("div", { className: "said" });
  drawSaid(turn);
  turn.agree = make("div");
  turn.legend = make("div");
  turn.element = make("section", { className: "turn" }, turn.head,
    make("div", { className: "answers" + (turn.answers.length > 1 ? " two" : "") }, ...turn.answers.map((a) => answerBox(turn, a))), turn.agree, turn.legend);
  log.append(turn.element);
  for (const answer of turn.answers) drawAnswer(turn, answer);
}

function drawEmpty() {
  const words = state.compare ? "Two models answer the same prompt. Shades show how sure each is of each token."
    : chatting() ? "Everything stays between this page and the server." : "This model has no chat template. It continues the text you give it.";
  log.replaceChildren(make("div", { className: "empty" }, make("h2", {}, chatting() ? "What shall we talk about?" : "Begin a text"), make("p", {}, words)));
}

function redraw() {
  const follow = isAtEnd();
  log.classList.toggle("wide-log", state.turns.some((t) => t.answers.length > 1));
  if (!state.turns.length) return drawEmpty();
  log.replaceChildren();
  for (const turn of state.turns) {
    const kept = turn.agree?.firstChild;
    drawTurn(turn);
    if (kept) turn.agree.append(kept);
  }
  if (follow) toEnd();
}

/* ---- running ---- */

const newAnswer = (model) => ({ model, text: "", tokens: [], pieces: 0, running: true });

async function runAnswer(turn, n, signal) {
  const answer = turn.answers[n];
  let waits = false;
  const changed = () => {
    if (waits) return;
    waits = true;
    setTimeout(() => requestAnimationFrame(() => { waits = false; drawAnswer(turn, answer); }), 30);
  };
  try {
    await complete(answer, bodyFor(turn, n), chatting(), signal, changed);
  } catch (problem) {
    if (problem.name === "AbortError") answer.finish = "stopped";
    else answer.error = problem instanceof Refused ? problem.message : "The server does not answer.";
  }
  answer.running = false;
  drawAnswer(turn, answer);
}

async function compareAnswers(turn, signal) {
  if (!turn.answers.every((a) => a.tokens.length && !a.error)) return;
  say("Comparing …");
  try {
    await Promise.all(turn.answers.map(async (answer, n) => scoreBy(turn.answers[1 - n].model, answer, await promptIds(turn, n, signal), signal)));
    turn.agree.replaceChildren(agreement(turn));
  } catch (problem) {
    if (problem.name !== "AbortError") turn.agree.replaceChildren(make("p", { className: "agree" }, "No comparison: " + problem.message));
  }
  for (const answer of turn.answers) drawAnswer(turn, answer);
}

async function answerTurn(turn) {
  const models = state.compare ? state.models : [state.models[0]];
  turn.answers = models.map((m) => newAnswer(m.id));
  turn.agree?.replaceChildren();
  redraw();
  toEnd();
  const control = new AbortController();
  state.running = control;
  showRunning();
  say("Answering …");
  if (settings.together) {
    await Promise.all(turn.answers.map((_, n) => runAnswer(turn, n, control.signal)));
  } else {
    for (let n = 0; n < turn.answers.length; n++) await runAnswer(turn, n, control.signal);
  }
  if (turn.answers.length > 1 && !control.signal.aborted) await compareAnswers(turn, control.signal);
  state.running = null;
  showRunning();
  say(control.signal.aborted ? "Stopped." : "");
  if (isAtEnd()) toEnd();
}

function showRunning() {
  const send = byId("send");
  send.textContent = state.running ? "Stop" : "Send";
  send.setAttribute("aria-label", state.running ? "Stop the answer" : "Send");
  document.body.dataset.running = state.running ? "yes" : "no";
}

function stop() {
  state.running?.abort();
}

function send() {
  const input = byId("input"), said = input.value;
  if (state.running || !state.models.length) return;
  if (!said.trim() && (chatting() || !state.turns.length)) return;
  input.value = "";
  fitInput();
  const turn = { said: chatting() ? said.trim() : said, answers: [] };
  state.turns.push(turn);
  answerTurn(turn);
}

function regenerate(turn) {
  if (state.running || !turn) return;
  state.turns.length = state.turns.indexOf(turn) + 1;
  answerTurn(turn);
}

function edit(turn) {
  if (state.running || !turn) return;
  const field = make("textarea", { value: turn.said, rows: Math.min(12, turn.said.split("\n").length + 1), "aria-label": "Message" });
  const done = (save) => {
    if (save && field.value.trim()) {
      turn.said = field.value;
      regenerate(turn);
    } else {
      drawSaid(turn);
    }
    byId("input").focus();
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") done(false);
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      done(true);
    }
    event.stopPropagation();
  });
  turn.head.replaceChildren(field, make("div", { className: "acts" }, button("Cancel", () => done(false)), button("Answer anew", () => done(true))));
  field.focus();
}

function startNew() {
  stop();
  state.turns = [];
  redraw();
  byId("input").focus();
}

/* ---- the frame ---- */

function fitInput() {
  const input = byId("input");
  input.style.height = "auto";
  input.style.height = input.scrollHeight + "px";
}

function showTheme() {
  const root = document.documentElement, words = { "": "as the system", light: "light", dark: "dark" };
  if (settings.theme) root.dataset.theme = settings.theme;
  else delete root.dataset.theme;
  byId("theme").textContent = { "": "◐", light: "○", dark: "●" }[settings.theme];
  byId("theme").setAttribute("aria-label", "Colours: " + words[settings.theme]);
}

function showViews() {
  byId("compare").setAttribute("aria-pressed", state.compare);
  byId("shade").setAttribute("aria-pressed", shading());
  byId("shade").disabled = state.compare;
  for (const element of document.querySelectorAll("dialog [data-for]"))
    element.hidden = element.dataset.for === "chat" ? !state.models[0]?.chat : state.models.length < 2;
  byId("input").placeholder = chatting() ? "Write a message" : "Write the beginning of a text";
}

const count = (n) => (n >= 1e9 ? (n / 1e9).toFixed(1) + " B" : (n / 1e6).toFixed(1) + " M");

function showModels() {
  byId("models").textContent = state.models.map((m) => m.id + " (" + count(m.meta.n_params) + " parameters, " + (m.meta.size / 1e6).toFixed(0) + " MB)").join(" · ");
  byId("compare").hidden = state.models.length < 2;
  document.title = state.models[0].id + " · neuronmlp";
}

function fillSettings() {
  for (const [name, value] of Object.entries(settings)) {
    const field = byId("s-" + name);
    if (!field) continue;
    if (field.type === "checkbox") field.checked = value;
    else field.value = value;
  }
}

function takeSettings() {
  for (const name of Object.keys(DEFAULTS)) {
    const field = byId("s-" + name);
    if (!field || !field.checkValidity()) continue;
    settings[name] = field.type === "checkbox" ? field.checked : NUMBERS.includes(name) && field.value === "" ? DEFAULTS[name] : field.value;
  }
  keep();
  showViews();
  if (!state.turns.length) redraw();
}

function onKey(event) {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") stop();
  if (event.altKey && event.code === "KeyR") regenerate(state.turns.at(-1));
  else if (event.altKey && event.code === "KeyN") startNew();
  else return;
  event.preventDefault();
}

function listen() {
  const input = byId("input");
  input.addEventListener("input", fitInput);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    } else if (event.key === "ArrowUp" && !input.value && state.turns.length) {
      event.preventDefault();
      edit(state.turns.at(-1));
    }
  });
  byId("send").addEventListener("click", () => (state.running ? stop() : send()));
  byId("new").addEventListener("click", startNew);
  byId("compare").addEventListener("click", () => {
    state.compare = !state.compare;
    showViews();
    startNew();
  });
  byId("shade").addEventListener("click", () => {
    settings.shade = !settings.shade;
    keep();
    showViews();
    redraw();
    if (settings.shade && state.turns.some((t) => t.answers.some((a) => !a.tokens.length))) say("Answers from now on are shaded.");
  });
  byId("theme").addEventListener("click", () => {
    settings.theme = { "": "light", light: "dark", dark: "" }[settings.theme];
    keep();
    showTheme();
  });
  byId("settings-open").addEventListener("click", () => {
    fillSettings();
    byId("settings").showModal();
  });
  byId("settings-close").addEventListener("click", () => byId("settings").close());
  byId("settings-reset").addEventListener("click", () => {
    Object.assign(settings, DEFAULTS, { theme: settings.theme });
    fillSettings();
  });
  byId("settings").addEventListener("close", takeSettings);
  document.addEventListener("keydown", onKey);
  log.addEventListener("scroll", hideTip, { passive: true });
}

async function begin() {
  showTheme();
  listen();
  for (;;) {
    try {
      state.models = (await requestJson("/v1/models")).data;
      break;
    } catch (problem) {
      say(problem.status === 503 ? "The model is being loaded …" : problem instanceof Refused ? problem.message : "The server does not answer.");
      await new Promise((done) => setTimeout(done, 1000));
    }
  }
  say("");
  state.compare = state.models.length > 1;
  showModels();
  showViews();
  redraw();
  document.body.dataset.ready = "yes";
}

begin();
