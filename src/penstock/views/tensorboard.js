// Penstock's pages in TensorBoard: chooses run and page, and shows what the backend made of them.
// Everything is asked of the plugin's own routes; nothing is loaded from elsewhere.
import { charts } from "./charts.js";
import { copyable, sortable } from "./page.js";

const state = { runs: [], tabs: [], run: null, other: null, tab: "overview", asked: 0 };
let library = null;

export async function render() {
  const style = document.createElement("link");
  style.rel = "stylesheet";
  style.href = "./page.css";
  document.head.append(style);
  style.addEventListener("load", () => followTheme(style.sheet));
  document.documentElement.lang = "en";
  document.body.innerHTML = '<div id="bar"></div><main id="page" aria-live="polite"></main>';
  // The page's base is not its own address: a link to a part of it is followed here.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#"]');
    if (!link) return;
    event.preventDefault();
    follow(link.getAttribute("href").slice(1));
  });
  await list();
}

// TensorBoard has a switch of its own between light and dark, which it tells its body and not the
// browser; where that cannot be seen, the browser's preference holds.
function followTheme(sheet) {
  const host = window.parent === window ? null : window.parent.document.body;
  if (!host) return;
  const dark = [...sheet.cssRules].filter((rule) => rule.media?.mediaText.includes("prefers-color-scheme"));
  const apply = () => {
    const isDark = host.classList.contains("dark-mode");
    for (const rule of dark) rule.media.mediaText = isDark ? "all" : "not all";
    document.documentElement.style.colorScheme = isDark ? "dark" : "light";
    document.dispatchEvent(new Event("theme"));
  };
  apply();
  new MutationObserver(apply).observe(host, { attributes: true, attributeFilter: ["class"] });
}

async function asked(path, query = {}) {
  const response = await fetch(`./${path}?${new URLSearchParams(query)}`);
  if (!response.ok) throw new Error(`${await response.text()} (${response.status})`);
  return response.json();
}

function element(tag, more = {}, ...children) {
  const made = Object.assign(document.createElement(tag), more);
  made.append(...children);
  return made;
}

// Which runs there are; keeps what was chosen if it is still there.
async function list() {
  const found = await asked("runs");
  Object.assign(state, found);
  if (!state.runs.includes(state.run)) state.run = state.runs[0] ?? null;
  if (!state.runs.includes(state.other)) state.other = state.runs.find((run) => run !== state.run) ?? null;
  await show();
}

function chooser(label, key) {
  const select = element("select", { id: `choose-${key}` });
  for (const run of state.runs) select.append(element("option", { value: run, textContent: run, selected: run === state[key] }));
  select.addEventListener("change", () => {
    const twin = key === "run" ? "other" : "run";
    if (state[twin] === select.value) state[twin] = state[key]; // no run is compared with itself
    state[key] = select.value;
    show();
  });
  return element("label", {}, `${label} `, select);
}

function bar() {
  const tabs = element("div", { role: "tablist", className: "tabs" });
  for (const tab of state.tabs) {
    const button = element("button", { type: "button", role: "tab", id: `tab-${tab.key}`, textContent: tab.title });
    button.setAttribute("aria-selected", String(tab.key === state.tab));
    button.addEventListener("click", () => {
      state.tab = tab.key;
      show();
    });
    tabs.append(button);
  }
  const again = element("button", { type: "button", textContent: "reload", title: "look for runs again, and at their files" });
  again.addEventListener("click", list);
  const isCompare = state.tab === "compare";
  const chosen = state.runs.length ? [chooser(isCompare ? "after" : "run", "run")] : [];
  if (isCompare && state.runs.length > 1) chosen.unshift(chooser("before", "other"));
  document.getElementById("bar").replaceChildren(tabs, ...chosen, again);
}

function say(...lines) {
  const card = element("div", { className: "card said" }, ...lines.map((line) => element("p", { textContent: line })));
  document.getElementById("page").replaceChildren(card);
}

async function show() {
  document.documentElement.removeAttribute("data-ready");
  bar();
  const number = ++state.asked;
  const isLate = () => number !== state.asked; // another page was asked for meanwhile
  try {
    await fill(isLate);
  } catch (error) {
    if (!isLate()) say(`This page cannot be shown: ${error.message}`);
  }
  if (!isLate()) document.documentElement.dataset.ready = `${state.tab} ${number}`;
}

async function fill(isLate) {
  if (!state.runs.length) {
    const below = state.place ? `below ${state.place}` : "in TensorBoard's log folder";
    say(`There is no run of Penstock ${below}.`, `Record one there: penstock run -o ${state.place || "LOGDIR"}/NAME python train.py`);
    return;
  }
  let answer;
  if (state.tab === "compare") {
    if (!state.other || state.runs.length < 2) {
      say("There is one run here; a second one can be compared with it.");
      return;
    }
    answer = await asked("compare", { before: state.other, after: state.run });
  } else {
    answer = await asked("page", { run: state.run, tab: state.tab });
  }
  if (isLate()) return;
  if (answer.error) {
    say("This run cannot be shown.", answer.error);
    return;
  }
  const page = document.getElementById("page");
  page.innerHTML = answer.html; // all text of the run is escaped where it is made
  sortable(page);
  copyable(page);
  if (!answer.data) return;
  const Plotly = await loaded();
  if (Plotly && !isLate()) charts(page, answer.data, Plotly);
}

// The chart library, once; without it the still pictures stay.
function loaded() {
  library ??= new Promise((done) => {
    const script = element("script", { src: "./plotly.js" });
    script.onload = () => done(window.Plotly);
    script.onerror = () => done(undefined);
    document.head.append(script);
  });
  return library;
}

async function follow(name) {
  const isHere = (tab) => tab.parts.includes(name) || (tab.parts.includes("time") && ["steps", "bandwidth", "lanes"].includes(name));
  if (!document.getElementById(name)) {
    const tab = state.tabs.find(isHere) ?? state.tabs.find((one) => one.parts.includes("sizes"));
    state.tab = tab?.key ?? state.tab;
    await show();
  }
  document.getElementById(name)?.scrollIntoView();
}
