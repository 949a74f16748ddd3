// Shows the answer in progress on the page of a session. The page works without this file.
"use strict";

{
  const box = document.getElementById("live");
  const place = box.querySelector(".text");
  let stream = null;

  function show(text) {
    place.textContent = text;
    box.hidden = !text;
  }

  const textOf = (event) =>
    event.type === "response.output_text.delta" ? event.delta : "";

  // What is shown is now in the history, unless words of the next answer come meanwhile.
  async function stored() {
    const shown = place.textContent;
    await refresh().catch(() => {});
    if (place.textContent === shown) show("");
  }

  // A message that is complete is in the history, or will be soon: the page reads itself again.
  const handlers = {
    snapshot(event) {
      show(event.events.map(textOf).join(""));
      soon();
    },
    "response.created"() { show(""); },
    "response.output_text.delta"(event) { show(place.textContent + textOf(event)); },
    item: stored,
    status: stored,
    unreadable() { close(); },
  };

  function close() {
    if (stream) stream.close();
    stream = null;
  }

  function open() {
    if (stream || document.hidden) return;
    stream = new EventSource(box.dataset.runEvents);
    for (const [kind, handle] of Object.entries(handlers)) {
      stream.addEventListener(kind, (event) => handle(JSON.parse(event.data)));
    }
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  open();
}
