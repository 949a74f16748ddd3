// The pages work without this file. It saves a click and a few keys.
"use strict";
const filter = document.getElementById("filter");
const order = document.getElementById("order");
if (order) order.addEventListener("change", () => order.form.submit());
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea");
  if (event.key === "/" && filter && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    filter.focus();
  }
});
const target = location.hash && document.getElementById(location.hash.slice(1));
if (target instanceof HTMLDetailsElement) target.open = true;
