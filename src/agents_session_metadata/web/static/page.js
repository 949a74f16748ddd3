// The pages work without this file. It adds following changes, copying, local times and keys.
"use strict";

// ---- what is done again when a part of the page was replaced ----

const locally = (at, options) => at.toLocaleString(undefined, options);
const minutes = { hour: "2-digit", minute: "2-digit" };
const forms = { clock: { ...minutes, second: "2-digit" }, moment: { month: "short", day: "numeric", ...minutes } };

function showTimes(root) {
  for (const time of root.querySelectorAll("time[data-as]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    time.title = locally(at, { dateStyle: "medium", timeStyle: "long" });
    const form = forms[time.dataset.as];
    if (form) time.textContent = locally(at, form);
  }
}

function copyButton(read, label) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy link";
  button.textContent = "Copy";
  button.setAttribute("aria-label", label);
  button.addEventListener("click", async (event) => {
    event.preventDefault();
    try {
      await navigator.clipboard.writeText(read());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

function addCopyButtons(root) {
  for (const element of root.querySelectorAll("[data-copy]")) {
    const isId = element.classList.contains("id");
    const button = copyButton(() => element.dataset.copy, isId ? "Copy the id" : "Copy the message");
    if (isId) element.after(" ", button);
    else element.append(button);
  }
  for (const pre of root.querySelectorAll("pre")) {
    if (!pre.textContent.trim()) continue;
    const text = pre.textContent;
    const frame = document.createElement("div");
    frame.className = "copied";
    pre.replaceWith(frame);
    frame.append(pre, copyButton(() => text, "Copy this text"));
  }
}

function prepare(root) {
  showTimes(root);
  addCopyButtons(root);
}

// ---- following changes ----

const main = document.getElementById("main");
let source = null;
let timer = 0;

const isEdited = (root) => [...root.querySelectorAll("input:not([type=hidden]), textarea")]
  .some((field) => field.value !== field.defaultValue || field.checked !== field.defaultChecked);

async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const old of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(old.id);
    if (!next || isEdited(old)) continue;
    const source = next.innerHTML;
    if (old.dataset.source === source) continue;
    for (const each of old.querySelectorAll("details[id][open]")) {
      const same = next.querySelector(`#${CSS.escape(each.id)}`);
      if (same) same.open = true;
    }
    const focused = old.contains(document.activeElement) && document.activeElement;
    const href = focused && focused.getAttribute("href");
    old.replaceWith(next);
    next.dataset.source = source;
    prepare(next);
    if (href) {
      const same = [...next.querySelectorAll("[href]")].find((each) => each.getAttribute("href") === href);
      if (same) same.focus({ preventScroll: true });
    }
  }
  const badge = fresh.querySelector(".top nav");
  if (badge) document.querySelector(".top nav").replaceWith(badge);
}

function soon() {
  clearTimeout(timer);
  timer = setTimeout(() => refresh().catch(() => {}), 300);
}

function follow() {
  if (source || document.hidden || !main.dataset.events) return;
  source = new EventSource(main.dataset.events);
  for (const kind of ["added", "changed", "removed"]) source.addEventListener(kind, soon);
}

// A browser opens few connections to a server, so only the visible page has one.
document.addEventListener("visibilitychange", () => {
  if (document.hidden && source) {
    source.close();
    source = null;
  } else if (!document.hidden && main.dataset.events) {
    soon();
    follow();
  }
});
window.addEventListener("pagehide", () => source && source.close());

// ---- keys ----

const search = () => document.getElementById("search") || document.getElementById("filter");

function move(by) {
  const places = [...document.querySelectorAll("main [data-key]")].filter((each) => each.offsetParent);
  if (!places.length) return;
  const at = places.indexOf(document.activeElement);
  const next = at < 0 && by < 0 ? places.length - 1 : at + by;
  const place = places[Math.min(Math.max(next, 0), places.length - 1)];
  place.focus();
  place.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("input:not([type=checkbox]), select, textarea");
  if (typing) {
    if (event.key === "Escape") typing.blur();
    return;
  }
  const help = document.getElementById("keys");
  if (help.open) return;
  if (event.key === "/") {
    event.preventDefault();
    if (search()) search().focus();
    else location.href = `${document.querySelector(".brand").href}#search`;
  } else if (event.key === "x") {
    const row = document.activeElement.closest("tr");
    const box = row && row.querySelector(".pick input");
    if (box) box.click();
  } else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
  else if (event.key === "?") help.showModal();
});

// ---- forms ----

// A second click on a button sends nothing, so it decides nothing. Exports leave the page as it is.
document.addEventListener("submit", (event) => {
  const { form, submitter } = { form: event.target, submitter: event.submitter };
  if (form.method !== "post" || (submitter && submitter.formAction.endsWith("/export"))) return;
  if (form.dataset.sent) event.preventDefault();
  form.dataset.sent = "yes";
});
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
});

document.addEventListener("change", () => {
  const count = document.querySelector(".bulk .count");
  if (count) count.textContent = `${document.querySelectorAll(".pick input:checked").length} selected`;
});

// A suggestion replaces the whole text, so each begins with the words before the last one.
const filter = document.getElementById("filter");
const suggestions = document.getElementById("suggestions");
if (filter && suggestions) {
  const words = [...suggestions.options].map((each) => each.value);
  filter.addEventListener("input", () => {
    const before = filter.value.slice(0, filter.value.lastIndexOf(" ") + 1);
    [...suggestions.options].forEach((each, at) => { each.value = before + words[at]; });
  });
}

// ---- the page as it was loaded ----

for (const part of document.querySelectorAll("[data-live]")) part.dataset.source = part.innerHTML;
prepare(document);
const order = document.getElementById("order");
if (order) order.addEventListener("change", () => order.form.submit());
const target = location.hash && document.getElementById(location.hash.slice(1));
if (target instanceof HTMLDetailsElement) target.open = true;
if (location.hash === "#search" && search()) search().focus();
follow();
