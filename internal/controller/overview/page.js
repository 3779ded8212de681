"use strict";
// Puts news into the page as the server sends them. Where a proxy does not let them through, it asks
// every few seconds instead.
const silence = 25_000, pause = 5_000, quickPause = 1_000, pollsBeforeStream = 12;
const main = document.getElementById("main");
let shown = main.dataset.id;

function element(html) {
  const box = document.createElement("template");
  box.innerHTML = html.trim(); // made by the server, which escapes what it shows
  return box.content.firstElementChild;
}

// replace keeps the keyboard where it is: on the same link of the new element. What a screen reader
// announces has to stay in its element.
function replace(old, fresh) {
  if (old.role === "status") { old.replaceChildren(...fresh.childNodes); return; }
  const link = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  old.replaceWith(fresh);
  if (link !== null) [...fresh.querySelectorAll("a")].find(a => a.getAttribute("href") === link)?.focus();
}

function apply(news) {
  const added = new Map();
  for (const [id, html] of Object.entries(news.parts ?? {})) {
    const old = document.getElementById(id), fresh = element(html);
    if (!old) added.set(id, fresh); else if (!old.isEqualNode(fresh)) replace(old, fresh);
  }
  for (const [id, children] of Object.entries(news.lists ?? {})) {
    const list = document.getElementById(id), wanted = new Set(children), focused = document.activeElement;
    for (const child of [...list.children]) if (!wanted.has(child.id)) child.remove();
    children.forEach((child, at) => {
      const item = added.get(child) ?? document.getElementById(child);
      if (list.children[at] !== item) list.insertBefore(item, list.children[at] ?? null);
    });
    if (focused?.isConnected) focused.focus();
  }
  shown = main.dataset.id = news.id;
}

function asOf(time) {
  document.getElementById("time").textContent = time;
  document.body.classList.remove("stale");
  document.getElementById("stale").textContent = "";
}

function stale() {
  document.body.classList.add("stale");
  document.getElementById("stale").textContent = "No answer: what is shown is old.";
}

function address(path) {
  const query = new URLSearchParams(location.search);
  if (path === "events") query.set("after", shown);
  return path + "?" + query;
}

// follow takes news as they come.
function follow() {
  const stream = new EventSource(address("events"));
  let heard = false, timer;
  const lost = () => {
    clearTimeout(timer);
    stream.close();
    delete document.body.dataset.stream;
    poll(heard ? 1 : pollsBeforeStream);
  };
  const wait = () => { clearTimeout(timer); timer = setTimeout(lost, silence); };
  stream.addEventListener("news", event => { heard = true; wait(); apply(JSON.parse(event.data)); });
  stream.addEventListener("beat", event => {
    heard = true;
    wait();
    shown = event.lastEventId;
    document.body.dataset.stream = "open";
    asOf(event.data);
  });
  stream.onerror = lost;
  wait();
}

// poll asks so often, and then tries the stream again.
async function poll(times) {
  try {
    const answer = await fetch(address("live"), {headers: {"If-None-Match": `"${shown}"`}, redirect: "error", signal: AbortSignal.timeout(silence)});
    if (answer.status === 401 || answer.status === 403) { location.reload(); return; }
    if (answer.status !== 304) {
      if (!answer.ok) throw new Error(String(answer.status));
      apply(await answer.json());
    }
    asOf(new Date(answer.headers.get("Date") ?? Date.now()).toISOString().slice(0, 19).replace("T", " ") + " UTC");
  } catch { stale(); }
  setTimeout(() => times > 1 ? poll(times - 1) : follow(), times > 1 ? pause : quickPause);
}

follow();
