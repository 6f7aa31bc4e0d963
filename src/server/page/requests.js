/* ---- talking to the server ---- */

const KEY = "neuronmlp.key";

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/* Asks for the key until the server takes one. */
function askKey(wrong) {
  return new Promise((done) => {
    const dialog = byId("key"), field = byId("key-value");
    byId("key-wrong").hidden = !wrong;
    field.value = "";
    const take = () => {
      if (!field.value) return;
      sessionStorage.setItem(KEY, field.value);
      dialog.close();
      done();
    };
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      take();
    };
    dialog.oncancel = (event) => event.preventDefault();
    if (!dialog.open) dialog.showModal();
    field.focus();
  });
}

async function request(path, body, signal) {
  for (;;) {
    const key = sessionStorage.getItem(KEY), headers = key ? { Authorization: "Bearer " + key } : {};
    if (body) headers["Content-Type"] = "application/json";
    const answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
    if (answer.status === 401) {
      await askKey(key !== null);
      continue;
    }
    if (answer.ok) return answer;
    const told = await answer.json().catch(() => null);
    throw new Refused(answer.status, told?.error?.message ?? "The server answers with status " + answer.status + ".");
  }
}

const requestJson = async (path, body, signal) => (await request(path, body, signal)).json();

/* Objects of a stream of server-sent events. */
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Refused(event.error.code, event.error.message);
      yield event;
    }
  }
}

/* Tokens of a chunk as {text, id, logprob, top: [{text, logprob}]}. A character made of several tokens is the last one's. */
function tokensOf(choice, text) {
  const all = choice.logprobs;
  if (!all) return [];
  const tokens = all.content
    ? all.content.map((t) => ({ text: t.token, id: t.id, logprob: t.logprob, top: t.top_logprobs.map((o) => ({ text: o.token, logprob: o.logprob })) }))
    : all.tokens.map((t, i) => ({
      text: t, id: all.token_ids[i], logprob: all.token_logprobs[i],
      top: Object.entries(all.top_logprobs[i] ?? {}).map(([words, logprob]) => ({ text: words, logprob })),
    }));
  if (tokens.map((t) => t.text).join("") !== text) tokens.forEach((t, i) => { t.text = i + 1 === tokens.length ? text : ""; });
  return tokens;
}

/* One answer, filled while it comes; `changed` hears of every piece. */
async function complete(answer, body, chat, signal, changed) {
  answer.started = performance.now();
  const stream = await request(chat ? "/v1/chat/completions" : "/v1/completions",
    { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  for await (const event of events(stream)) {
    if (event.usage) answer.usage = event.usage;
    const choice = event.choices[0];
    if (!choice) continue;
    const text = (chat ? choice.delta.content : choice.text) ?? "", tokens = tokensOf(choice, text);
    if (choice.finish_reason) answer.finish = choice.finish_reason;
    if (!text && !tokens.length) continue;
    answer.last = performance.now();
    answer.first ??= answer.last;
    answer.text += text;
    answer.tokens.push(...tokens);
    answer.pieces += tokens.length || 1;
    changed();
  }
}

/* Tokens, their rate, the time to the first one. */
function factsOf(answer) {
  if (answer.first === undefined) return "";
  const n = answer.usage?.completion_tokens ?? answer.pieces, seconds = (answer.last - answer.first) / 1e3;
  const facts = [];
  if (n > 1 && seconds > 0) facts.push(((n - 1) / seconds).toFixed((n - 1) / seconds < 100 ? 1 : 0) + " tokens/s");
  facts.push("first after " + Math.round(answer.first - answer.started) + " ms", n + (n === 1 ? " token" : " tokens"));
  if (answer.usage) facts.push(answer.usage.prompt_tokens_details.cached_tokens + " of " + answer.usage.prompt_tokens + " prompt tokens cached");
  if (answer.finish === "length") facts.push("cut at the limit");
  return facts.join(" · ");
}
