"use strict";

const $ = (id) => document.getElementById(id);
let chat = null;    // the id of the open chat
let stream = null;  // what happens in it
let items = [];     // its items, as the server shows them
let text = "";      // the answer in progress
let run = null;     // the newest status of its run
let problem = "";
let sent = "";      // the newest message of this tab
let changes = 0;    // how often `run` was set

async function api(path, method = "GET", body = undefined) {
  const headers = { "content-type": "application/json" };
  const lost = () => { throw new Error("The server does not answer. Try again."); };
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) }).catch(lost);
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(found.detail || found.error?.message || `The server answers ${answer.status}.`);
  return found;
}

// ---- the open chat ----

const ofChat = (path) => `/v1/conversations/${encodeURIComponent(chat)}${path}`;

async function open(id) {
  if (stream) stream.close();
  [chat, stream, items, text, run, problem, sent] = [id, null, [], "", null, "", ""];
  location.hash = id;
  const page = await api(ofChat("/items?limit=50"));
  if (chat !== id) return;
  items = page.data.reverse();
  follow(page.first_id);
  show();
}

// `after` stays the same when the browser connects again: what the server sends replaces the rest.
function follow(after) {
  const query = after ? `&after=${encodeURIComponent(after)}` : "";
  stream = new EventSource(ofChat(`/run/events?forever=true${query}`));
  for (const [kind, handle] of Object.entries(handlers)) {
    stream.addEventListener(kind, (event) => { handle(JSON.parse(event.data)); show(); });
  }
  stream.onerror = () => { problem = "The connection to the server is lost."; show(); };
}

const deltaOf = (event) => event.type === "response.output_text.delta" ? event.delta : "";

// The text of an error is for developers: the page has words of its own.
const FAILURES = { BudgetExceededError: "Your budget is used up." };

const handlers = {
  snapshot(event) {
    const kept = items.findIndex((item) => item.id && item.id === event.after);
    items = [...items.slice(0, kept + 1), ...event.items];
    text = event.events.map(deltaOf).join("");
    problem = "";
    loadRun();
    showChats();
  },
  "response.created"() {
    text = "";
    setRun({ status: "running" });
  },
  "response.output_text.delta"(event) { text += deltaOf(event); },
  item(event) {
    if (event.item.role === "assistant") text = "";
    if (event.item.role === "user") showChats();
    items.push(event.item);
    if (!run) setRun({ status: "running" });
  },
  status(event) {
    setRun(event);
    text = "";
    problem = event.status === "failed" ? FAILURES[event.error?.type] || "The answer failed. Send the message again." : "";
    if (problem) $("text").value ||= sent;
    showChats();
  },
};

// A snapshot does not tell whether a run works: there can be none.
async function loadRun() {
  const before = changes;
  const found = await api(ofChat("/run")).catch(() => null);
  if (before !== changes) return;  // An event was faster.
  setRun(found);
  show();
}

function setRun(found) {
  run = found;
  changes += 1;
}

function add(parent, tag, content, options = {}) {
  return parent.appendChild(Object.assign(document.createElement(tag), { textContent: content, ...options }));
}

function show() {
  const place = $("messages");
  place.replaceChildren();
  for (const item of items) {
    if (item.role) add(place, "p", item.content.map((part) => part.text).join(""), { className: item.role });
    else if (item.type === "function_call") add(place, "p", `${item.name}(${item.arguments})`, { className: "call" });
  }
  if (text) add(place, "p", text, { className: "assistant", id: "written" });
  for (const call of run?.status === "waiting" ? run.pending : []) {
    if (call.decision) continue;
    const question = add(place, "p", `May I call ${call.tool}(${call.arguments})? `, { className: "question" });
    for (const approve of [true, false]) {
      const decide = () => tried(api(ofChat("/run/decisions"), "POST", { call_id: call.call_id, approve }));
      add(question, "button", approve ? "Approve" : "Reject", { onclick: decide });
    }
  }
  if (problem) add(place, "p", problem, { className: "error" });
  $("stop").hidden = !["running", "waiting", "interrupted"].includes(run?.status);
}

async function tried(promise) {
  problem = "";
  try {
    await promise;
  } catch (error) {
    problem = error.message;
  }
  show();
}

const newChat = async () => open((await api("/v1/conversations", "POST", {})).id);

async function send(message) {
  try {
    if (!chat) await newChat();
    sent = message.text;
    await api(`/chats/${encodeURIComponent(chat)}/messages`, "POST", message);
  } catch (error) {
    $("text").value ||= message.text;
    throw error;
  }
}

$("form").onsubmit = (event) => {
  event.preventDefault();
  const message = { text: $("text").value, key: crypto.randomUUID(), if_busy: $("busy").value };
  $("text").value = "";
  tried(send(message));
};
$("stop").onclick = () => tried(api(ofChat("/run/cancel"), "POST", {}));

// ---- the list of chats ----

async function showChats() {
  const words = $("search").value;
  const found = words
    ? (await api(`/v1/search?q=${encodeURIComponent(words)}`)).data
        .map((hit) => ({ id: hit.conversation_id, title: hit.snippet }))
    : (await api("/v1/conversations?preview=true")).data
        .map((each) => ({ id: each.id, title: each.metadata.title || each.preview || "New chat" }));
  $("chats").replaceChildren();
  for (const each of found) {
    const link = add($("chats"), "a", each.title, { href: `#${each.id}`, onclick: () => open(each.id) });
    if (each.id === chat) link.ariaCurrent = "true";
  }
}

$("search").oninput = showChats;
$("new").onclick = () => tried(newChat());
$("login").onsubmit = async (event) => {
  event.preventDefault();
  localStorage.user = $("user").value;
  await api("/login", "POST", { user: $("user").value });
  location.hash = "";
  location.reload();
};

$("user").value = localStorage.user || "ana";
showChats().then(() => location.hash && open(location.hash.slice(1))).catch((error) => tried(Promise.reject(error)));
