"use strict";
const auto = document.getElementById("auto"), run = document.getElementById("run"), note = document.getElementById("note");
auto.parentElement.hidden = false;
setInterval(async () => {
  if (!auto.checked || document.hidden) return;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html"), fresh = page.getElementById("run");
    for (const open of run.querySelectorAll("details[open]")) page.getElementById(open.id)?.setAttribute("open", "");
    const focus = document.activeElement?.id, log = document.getElementById("log")?.scrollTop;
    run.replaceChildren(...fresh.childNodes);
    if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
    if (log && document.getElementById("log")) document.getElementById("log").scrollTop = log;
    document.title = page.title;
    document.querySelector("h1").textContent = page.querySelector("h1").textContent;
    note.textContent = "";
  } catch {
    note.textContent = "no answer: the run may have ended";
  }
}, 5000);
