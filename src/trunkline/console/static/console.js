// What the pages cannot do by themselves: stay live, ask before something cannot be undone, obey the keyboard.
// Every page works without this file.
"use strict";

const live = document.getElementById("live");
const state = document.getElementById("live-state");
let stream = null;

function say(text, how) {
  if (state) {
    state.textContent = text;
    state.className = `live-state ${how}`;
  }
}

// Whoever types or has chosen something in the live part must not lose it.
function isBusy() {
  const active = document.activeElement;
  const typing = active && live.contains(active) && active.matches("input, select, textarea");
  const filled = [...live.querySelectorAll("input:not([type=hidden])")].some((field) => field.value !== field.defaultValue);
  const selection = document.getSelection();
  const marking = selection && !selection.isCollapsed && live.contains(selection.anchorNode);
  const kept = live.querySelector("[data-kept]") !== null;
  return typing || filled || marking || kept;
}

let latest = null;

function show(html) {
  // A page that could not be shown has no head and no forms: it is loaded as a whole when it can be.
  if (live.querySelector("[data-refused]") && !html.includes("data-refused")) return location.reload();
  latest = html;
  if (isBusy()) return;
  latest = null;
  const active = document.activeElement;
  const place = live.contains(active) ? [...live.querySelectorAll("a, button, summary, [tabindex]")].indexOf(active) : -1;
  const open = [...live.querySelectorAll("details[open][id]")].map((each) => each.id);
  const scrolled = [...live.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
  live.innerHTML = html;
  open.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
  live.querySelectorAll(".scroll").forEach((each, i) => scrolled[i] && each.scrollTo(...scrolled[i]));
  if (place >= 0) live.querySelectorAll("a, button, summary, [tabindex]")[place]?.focus({ preventScroll: true });
}

// What came while somebody typed is shown when they are done. The server does not send the same twice.
document.addEventListener("focusout", () => setTimeout(() => latest !== null && show(latest)));

function watch() {
  if (!live || stream || document.hidden) return;
  stream = new EventSource(live.dataset.live);
  stream.addEventListener("live", (event) => {
    say("live", "on");
    show(event.data);
  });
  stream.addEventListener("ended", () => location.reload());
  stream.onerror = () => say("not live: connecting again", "off");
}

function rest() {
  stream?.close();
  stream = null;
}

// A browser allows six connections to one server: a page that nobody sees must not hold one.
document.addEventListener("visibilitychange", () => (document.hidden ? rest() : watch()));
window.addEventListener("pagehide", rest);
watch();

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});

document.querySelector("form[data-send-at-once]")?.submit();

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.querySelectorAll(".me[open]").forEach((menu) => menu.removeAttribute("open"));
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const field = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (field) {
    event.preventDefault();
    field.focus();
  }
});

// A file goes out as it is, with its progress; what comes back is the report, made by the server.
document.querySelectorAll("form[data-upload]").forEach((form) =>
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const file = form.querySelector("input[type=file]").files[0];
    const [bar, report, button] = ["progress", "[data-report]", "button"].map((each) => form.querySelector(each));
    const query = new URLSearchParams({ file: file.name });
    form.querySelectorAll("[data-map]").forEach((field) => field.value && query.append("map", `${field.dataset.map}:${field.value}`));
    const request = new XMLHttpRequest();
    request.open("POST", `${form.dataset.upload}?${query}`);
    request.setRequestHeader("X-Form-Token", form.dataset.token);
    request.upload.onprogress = (sent) => sent.lengthComputable && (bar.value = (100 * sent.loaded) / sent.total);
    request.onloadend = () => {
      bar.hidden = true;
      button.disabled = false;
      report.innerHTML = request.status ? request.responseText : '<p class="banner bad" role="alert">The upload was cut off. Send the file again: nobody is called twice.</p>';
    };
    bar.hidden = false;
    button.disabled = true;
    report.textContent = "";
    request.send(file);
  }),
);
