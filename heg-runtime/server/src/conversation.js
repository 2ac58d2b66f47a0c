"use strict";
// The conversation box: it asks /v1/chat/completions as any client does, and shows what it costs to be answered.
// Nothing of a conversation is kept but in this tab.
let turns = [], running = null;

/// The models that answer; without any there is no conversation.
function offerTalk(models) {
  const choice = find("talk-model");
  find("talk").hidden = models.length === 0;
  choice.parentElement.hidden = models.length < 2;
  const known = [...choice.options].map(option => option.value);
  if (known.join("\n") !== models.join("\n")) choice.replaceChildren(...models.map(name => new Option(name, name)));
}

/// A part of the conversation, as it is shown.
function shown(role, content) {
  const part = document.createElement("article"), words = document.createElement("p"), notes = document.createElement("p");
  const who = document.createElement("h3"), thoughts = document.createElement("details");
  const title = document.createElement("summary"), thought = document.createElement("p");
  part.className = role;
  who.textContent = role === "user" ? "You" : find("talk-model").value;
  words.className = "words";
  words.textContent = content;
  notes.className = "notes";
  thoughts.className = "thoughts";
  thoughts.hidden = true;
  title.textContent = "What it thought";
  thoughts.append(title, thought);
  part.append(who, thoughts, words, notes);
  find("said").append(part);
  part.scrollIntoView({ block: "nearest" });
  return { thought, words, notes };
}

/// The events of a stream, each as an object.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.split("\n").find(line => line.startsWith("data: "));
      if (data && data !== "data: [DONE]") yield JSON.parse(data.slice(6));
    }
  }
}

async function say(content) {
  const priority = find("talk-class").value, model = find("talk-model").value;
  const asked = turns.concat({ role: "user", content });
  shown("user", content);
  const { thought, words, notes } = shown("assistant", "");
  const token = sessionStorage.getItem("token");
  const headers = { "content-type": "application/json", ...(token ? { authorization: "Bearer " + token } : {}) };
  const body = JSON.stringify({ model, messages: asked, stream: true, priority });
  const begun = performance.now(), answer = { id: null, predicted: null, first: null, timings: null, tokens: 0 };
  running = new AbortController();
  busy(true);
  let state = "";
  try {
    notes.textContent = `${priority}, waiting`;
    if (heard.models.length > 1) await look(model, "none");
    const response = await fetch("v1/chat/completions", { method: "POST", headers, body, signal: running.signal });
    if (response.status === 401) askForToken();
    if (!response.ok) throw new Error((await response.json()).error.message);
    answer.predicted = Number(response.headers.get("heg-predicted-ttft-ms"));
    notes.textContent = `${priority}, waiting: a first token was forecast for ${number(answer.predicted)} ms`;
    for await (const event of eventsOf(response)) {
      if (event.error) throw new Error(event.error.message);
      answer.id = event.id;
      answer.timings = event.timings ?? answer.timings;
      const delta = event.choices[0]?.delta ?? {};
      const more = delta.content ?? delta.tool_calls?.map(call => JSON.stringify(call.function)).join("\n") ?? "";
      const thoughtMore = delta.reasoning_content ?? "";
      if ((more || thoughtMore) && answer.first === null) {
        answer.first = performance.now() - begun;
        notes.textContent = `${priority}, answering`;
      }
      if (thoughtMore) thought.parentElement.hidden = false;
      thought.textContent += thoughtMore;
      words.textContent += more;
      words.scrollIntoView({ block: "nearest" });
    }
  } catch (error) {
    state = error.name === "AbortError" ? "stopped" : "no answer: " + error.message;
  }
  running = null;
  busy(false);
  // A message without an answer is not part of what the model is told next.
  const thoughts = thought.textContent ? { reasoning_content: thought.textContent } : {};
  if (words.textContent) turns = asked.concat({ role: "assistant", content: words.textContent, ...thoughts });
  notes.textContent = summary(priority, answer, state);
  if (answer.id && answer.first !== null) await explainWait(model, answer.id, notes).catch(() => {});
}

/// The class of an answer, how it ended and its times, in words.
function summary(priority, answer, state) {
  const parts = [priority], time = ms => number(ms) + " ms", { timings } = answer;
  if (state) parts.push(state);
  if (timings) {
    parts.push(`first token after ${time(timings.ttft_ms)}, forecast ${time(timings.predicted_ttft_ms)}`);
    parts.push(`${time(timings.queued_ms)} in the queue`);
    if (timings.tpot_ms > 0) parts.push(`${number(1000 / timings.tpot_ms)} tokens/s`);
  } else if (answer.first !== null) {
    parts.push(`first token after ${time(answer.first)}, forecast ${time(answer.predicted)}`);
  }
  return parts.join(" · ");
}

/// Looks at a model, which is watched from then on, and at one of its answers.
async function look(model, answer) {
  const token = sessionStorage.getItem("token");
  const headers = token ? { authorization: "Bearer " + token } : {};
  const query = new URLSearchParams({ model: heard.models.indexOf(model), after: heard.next, answer });
  const response = await fetch("dashboard.json?" + query, { headers, cache: "no-store" });
  return response.ok ? (await response.json()).answer : null;
}

/// Adds why an answer waited for its first token; the server knows it shortly after the end.
async function explainWait(model, id, notes) {
  for (let tries = 0; tries < 10; tries += 1) {
    const found = await look(model, id);
    if (found) {
      const causes = found.causes.map(cause => `${cause.text} ${number(cause.time_us / 1000)} ms`);
      notes.textContent += " · waited: " + causes.join(", ");
      return;
    }
    await new Promise(done => setTimeout(done, 200));
  }
}

function busy(is) {
  find("send").hidden = is;
  find("stop").hidden = !is;
  find("anew").disabled = is;
}

find("say").addEventListener("submit", event => {
  event.preventDefault();
  const content = find("message").value.trim();
  if (!content || running) return;
  find("message").value = "";
  say(content);
});
find("message").addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  find("say").requestSubmit();
});
find("stop").addEventListener("click", () => running?.abort());
find("anew").addEventListener("click", () => {
  turns = [];
  find("said").replaceChildren();
  find("message").focus();
});
