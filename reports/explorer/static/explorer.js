// The explorer's page. Its state is the address: a scenario and settings, as on the command line.
// Each change sends two requests: for a first estimate, shown at once, and for the full answer, with intervals and new options.

import { Timeline } from "./timeline.js";

/** @typedef {[string, string]} Setting a field and its value, as --set takes them */

const CAUSES = {
  compute: "blue",
  slowest_rank: "vermillion",
  exposed_communication: "orange",
  bubble: "purple",
  waiting_for_server: "yellow",
  waiting_for_ranks: "sky",
  waiting_for_input: "green",
  other: "grey",
};
// time without changes after which the full answer is requested
const PAUSE_MS = 150;
const HOLDERS = ["blue", "sky", "green", "orange", "purple", "yellow", "vermillion", "grey"];

/** @param {string} id @returns {HTMLElement} */
const at = (id) => document.getElementById(id);

/** @param {string} tag @param {Object<string, any>} [properties] @param {...(Node|string)} children @returns {any} */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** The state of the page: a scenario and its settings in order. */
const state = {
  scenario: "",
  /** @type {Setting[]} */
  sets: [],

  /** @returns {string} */
  query() {
    return `?${new URLSearchParams([["scenario", this.scenario], ...this.sets.map(([field, text]) => ["set", `${field}=${text}`])])}`;
  },

  /** @param {string} query */
  read(query) {
    const parameters = new URLSearchParams(query);
    this.scenario = parameters.get("scenario") || this.scenario;
    this.sets = parameters.getAll("set").map(split);
  },

  /** Later settings replace earlier ones of the same field, and of fields within it. @param {Setting[]} settings */
  set(settings) {
    for (const [field, text] of settings) {
      this.sets = this.sets.filter(([other]) => other !== field && !other.startsWith(`${field}.`));
      this.sets.push([field, text]);
    }
  },

  /** @param {string} field @returns {string | undefined} what was set last of a field */
  text(field) {
    return this.sets.findLast(([other]) => other === field)?.[1];
  },
};

/** @param {string} text @returns {Setting} */
function split(text) {
  const place = text.indexOf("=");
  return place < 0 ? [text, ""] : [text.slice(0, place), text.slice(place + 1)];
}

// ---- requests ------------------------------------------------------------------------------------------------------------

let version = 0;
let isRequesting = false;
let begin = "";
/** @type {AbortController | null} */
let refining = null;
const timeline = new Timeline(/** @type {HTMLCanvasElement} */ (at("timeline")), at("reading"));

/** Takes over a changed state. @param {"push" | "replace" | "none"} how what happens to the address */
function changed(how) {
  version += 1;
  if (how === "push") history.pushState(null, "", state.query());
  if (how === "replace") history.replaceState(null, "", state.query());
  showSettings();
  refining?.abort();
  requestFirst();
}

/** Requests first estimates, one at a time: during a request only the latest change is queued. */
async function requestFirst() {
  if (isRequesting) return;
  isRequesting = true;
  let requested = -1;
  at("answer").setAttribute("aria-busy", "true");
  while (requested !== version) {
    requested = version;
    const answer = await fetched(`/api/answer${state.query()}&look=first`);
    if (answer) show(answer, requested);
  }
  isRequesting = false;
  refine(requested);
}

/** Requests the full answer after a pause without changes; a change cancels it. @param {number} requested */
async function refine(requested) {
  const own = new AbortController();
  refining = own;
  await new Promise((done) => setTimeout(done, PAUSE_MS));
  if (own.signal.aborted) return;
  at("status").textContent = "Computing the prediction interval …";
  const answer = await fetched(`/api/answer${state.query()}`, own.signal);
  if (!answer || requested !== version) return;
  show(answer, requested);
  at("answer").setAttribute("aria-busy", "false");
}

/** @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>} null if the request was cancelled */
async function fetched(path, signal) {
  try {
    const response = await fetch(path, { signal });
    return await response.json();
  } catch (error) {
    if (signal?.aborted) return null;
    return { error: { field: "", message: "The server does not respond; is scaleproof explore still running?", remedies: [] } };
  }
}

// ---- showing -------------------------------------------------------------------------------------------------------------

/** @param {any} answer @param {number} requested */
function show(answer, requested) {
  if (answer.controls) showControls(answer.controls, Boolean(answer.error));
  showProblem(answer.error);
  if (answer.command) at("command").textContent = answer.command;
  if (answer.query) at("yaml").setAttribute("href", `/scenario.yaml${answer.query}`);
  if (!answer.error) showForecast(answer);
  document.body.dataset.shown = String(requested);
}

/** @param {any} answer */
function showForecast(answer) {
  at("results").hidden = false;
  at("headline").textContent = answer.headline;
  at("bottleneck").textContent = answer.bottleneck;
  at("description").textContent = answer.description;
  document.title = `${answer.numbers[0].value} ${answer.numbers[0].unit}: ${answer.name}`;
  at("status").textContent = answer.exact ? "" : "First estimate, which may be a few percent off …";
  showNumbers(answer.numbers);
  showCauses(answer.breakdown);
  showMemory(answer.memory);
  showTimeline(answer.timeline, answer.ranks, Boolean(answer.controls));
  at("warnings").hidden = !answer.warnings.length;
  at("warnings").replaceChildren(...answer.warnings.map((/** @type {string} */ one) => make("li", {}, one)));
}

/** @param {any[]} numbers null in a first estimate: the old value stays, greyed */
function showNumbers(numbers) {
  const list = at("numbers");
  const known = numbers.map((one) => one.key).join();
  if (list.dataset.keys !== known) {
    list.replaceChildren(...numbers.map(tile));
    list.dataset.keys = known;
  }
  numbers.forEach((one, place) => {
    for (const part of ["value", "detail"]) {
      const element = list.children[place].querySelector(`.${part}`);
      if (one[part] !== null) element.replaceChildren(one[part], ...(part === "value" ? [make("small", {}, ` ${one.unit}`)] : []));
      element.classList.toggle("stale", one[part] === null);
    }
    list.children[place].querySelector(".help").textContent = one.help;
  });
}

/** @param {any} one @returns {HTMLElement} */
function tile(one) {
  const box = make("div", {}, make("dt", {}, one.label));
  box.dataset.key = one.key;
  for (const part of ["value", "detail", "help"]) box.append(make("dd", { className: part }));
  return box;
}

/** @param {any[]} parts */
function showCauses(parts) {
  const colours = parts.map((part) => CAUSES[part.name] || "grey");
  showBar(at("causes"), parts.map((part) => part.share), colours);
  showLegend(at("cause-list"), parts.map((part, i) => ({ ...part, colour: colours[i] })));
}

/** @param {HTMLElement} bar @param {number[]} shares @param {string[]} colours */
function showBar(bar, shares, colours) {
  while (bar.children.length > shares.length) bar.lastElementChild.remove();
  while (bar.children.length < shares.length) bar.append(make("div"));
  shares.forEach((share, i) => {
    const part = /** @type {HTMLElement} */ (bar.children[i]);
    part.style.width = `${share * 100}%`;
    part.style.background = `var(--${colours[i]})`;
  });
}

/** @param {HTMLElement} list @param {{label: string, text: string, help: string, colour: string}[]} entries */
function showLegend(list, entries) {
  const known = entries.map((one) => `${one.label} ${one.colour}`).join();
  if (list.dataset.known !== known) list.replaceChildren(...entries.map(line));
  list.dataset.known = known;
  entries.forEach((one, i) => {
    const text = list.children[i].querySelector(".text");
    if (text.textContent !== one.text) text.textContent = one.text;
  });
}

/** @param {{label: string, help: string, colour: string}} one @returns {HTMLElement} a legend's line */
function line({ label, help, colour }) {
  const swatch = make("span", { className: "swatch" });
  swatch.style.background = `var(--${colour})`;
  const words = make("span", {}, make("b", {}, label), " ", make("span", { className: "text" }));
  return make("li", {}, swatch, words, ...(help ? [make("p", { className: "help" }, help)] : []));
}

/** @param {any} memory */
function showMemory(memory) {
  at("memory").closest("section").hidden = !memory;
  if (!memory) return;
  const whole = Math.max(memory.total_bytes, memory.capacity_bytes || 0) || 1;
  const colours = memory.holders.map((/** @type {any} */ _, /** @type {number} */ i) => HOLDERS[Math.min(i, HOLDERS.length - 1)]);
  at("memory-text").textContent = memory.text;
  showBar(at("memory"), memory.holders.map((/** @type {any} */ one) => one.bytes / whole), colours);
  at("capacity").style.left = `calc(${((memory.capacity_bytes || whole) / whole) * 100}% - 2px)`;
  at("capacity").hidden = memory.fits !== false;
  at("fits").replaceChildren(...fits(memory));
  showLegend(at("memory-list"), memory.holders.map((/** @type {any} */ one, /** @type {number} */ i) => ({ ...one, colour: colours[i] })));
}

/** @param {any} memory @returns {(Node|string)[]} */
function fits(memory) {
  if (memory.fits !== false) return memory.fits ? ["It fits in the memory of every device."] : [];
  const words = [make("span", { className: "bad" }, "It does not fit"), " in the memory of the fullest device; the dashed line is its capacity."];
  return memory.fit_by.length ? [...words, " It fits with ", remedy(memory.fit_by)] : words;
}

/** @param {string[]} settings @returns {HTMLButtonElement} */
function remedy(settings) {
  return make("button", {
    type: "button",
    textContent: `set ${settings.join(", ")}`,
    onclick: () => {
      state.set(settings.map(split));
      changed("push");
    },
  });
}

/** @param {any} tracks @param {number} ranks @param {boolean} isFull */
function showTimeline(tracks, ranks, isFull) {
  at("timeline").closest("section").hidden = !tracks;
  if (!tracks) return;
  const rows = tracks.rows.length < tracks.of ? `the first ${tracks.rows.length} of ${tracks.of} rank classes` : "one row for each rank class";
  const all = ranks > tracks.rows.length ? `: ${ranks.toLocaleString("en")} ranks (a rank is a process on a device); equivalent ranks share a row` : "";
  const below = "The narrower row below each rank shows transfers that overlap with its work.";
  at("timeline-words").textContent = `${rows[0].toUpperCase()}${rows.slice(1)}${all}. ${below}`;
  at("timeline").setAttribute("aria-label", `Timeline of ${tracks.rows.length} rows and ${tracks.boxes} boxes`);
  showLegend(at("kinds"), Object.values(tracks.kinds).map((/** @type {any} */ one) => ({ ...one, label: one.name, text: "" })));
  timeline.show(tracks, isFull);
}

/** @param {any} problem */
function showProblem(problem) {
  const box = at("problem");
  box.hidden = !problem;
  for (const wrong of document.querySelectorAll(".wrong")) unmark(wrong);
  if (!problem) return;
  const kept = at("results").hidden ? "" : " The forecast below is the last valid one.";
  const control = controls.get(nearest(problem.field));
  const label = control?.root.querySelector("label").textContent;
  const field = problem.field ? `${label && label !== "Settings" ? label : problem.field}: ` : "";
  if (at("results").hidden) at("headline").textContent = "No forecast yet";
  const buttons = problem.remedies.map((/** @type {string} */ one) => remedy([one]));
  box.replaceChildren(make("p", {}, `${field}${problem.message}.${kept}`.replace(/\.\./g, ".")), ...buttons);
  at("status").textContent = "";
  at("answer").setAttribute("aria-busy", "false");
  if (control) mark(control.root);
  if (control?.root.parentElement instanceof HTMLDetailsElement) control.root.parentElement.open = true;
}

/** @param {string} field @returns {string} the control's field that equals this one, is within it or contains it */
function nearest(field) {
  const names = [...controls.keys(), "settings"];
  const around = { batch: "batch.per_worker", strategy: state.text("strategy.workers") ? "strategy.workers" : "strategy.kind" };
  if (!field) return "";
  return names.find((name) => name === field) || around[field] || names.find((name) => name.startsWith(`${field}.`)) || "settings";
}

/** @param {Element} root */
function mark(root) {
  root.classList.add("wrong");
  for (const input of root.querySelectorAll("select, input, textarea")) input.setAttribute("aria-invalid", "true");
}

/** @param {Element} root */
function unmark(root) {
  root.classList.remove("wrong");
  for (const input of root.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
}

// ---- controls ------------------------------------------------------------------------------------------------------------

/** @type {Map<string, {root: HTMLElement, update: (control: any) => void}>} by field */
const controls = new Map();

/** Updates the form; controls that stay keep their element, and so the focus.
 * @param {any[]} groups @param {boolean} wrong whether they belong to the scenario without its invalid settings */
function showControls(groups, wrong) {
  const form = at("controls");
  const wanted = new Set(["settings", ...groups.flatMap((group) => group.controls.map((/** @type {any} */ one) => one.field))]);
  for (const [field, { root }] of controls) {
    if (!wanted.has(field)) {
      root.remove();
      controls.delete(field);
    }
  }
  for (const group of groups) {
    let box = [...form.querySelectorAll("details")].find((one) => one.dataset.title === group.title);
    if (!box) {
      // all groups are open where they fit next to the forecast
      box = make("details", { open: innerWidth >= 960 }, make("summary", {}, group.title));
      box.dataset.title = group.title;
      form.insertBefore(box, settingsBox);
    }
    let before = box.firstElementChild;
    for (const control of group.controls) {
      if (!controls.has(control.field)) controls.set(control.field, (control.kind === "slider" ? slider : choice)(control));
      const known = controls.get(control.field);
      if (before.nextElementSibling !== known.root) before.after(known.root);
      known.update(wrong ? asSet(control) : control);
      known.root.classList.toggle("changed", state.text(control.field) !== undefined);
      before = known.root;
    }
  }
}

/** A control that shows the value that was set, though it is invalid. @param {any} control @returns {any} */
function asSet(control) {
  const value = state.text(control.field);
  if (value === undefined || control.kind === "slider") return value === undefined ? control : { ...control, value };
  const known = control.options.some((/** @type {any} */ one) => one.says === value);
  const options = known ? control.options : [{ says: value, label: value, sets: [] }, ...control.options];
  return { ...control, options, value };
}

/** @param {string} field @returns {string} */
const idOf = (field) => `control-${field.replace(/[^a-z0-9]/gi, "-")}`;

/** A list of options. @param {any} first */
function choice(first) {
  const id = idOf(first.field);
  const list = make("select", { id });
  const help = make("p", { className: "help", id: `${id}-help` });
  list.setAttribute("aria-describedby", help.id);
  const root = make("div", { className: "control" }, make("label", { htmlFor: id, textContent: first.label }), list, help);
  let options = first.options;
  list.addEventListener("change", () => {
    state.set(options[list.selectedIndex].sets.map(split));
    changed("push");
  });
  return {
    root,
    update(/** @type {any} */ control) {
      if (JSON.stringify(options) !== JSON.stringify(control.options) || !list.options.length) {
        list.replaceChildren(...control.options.map((/** @type {any} */ one) => make("option", { textContent: one.label, title: one.hint || "" })));
      }
      options = control.options;
      list.selectedIndex = options.findIndex((/** @type {any} */ one) => one.says === control.value);
      help.textContent = (first.field !== "strategy.kind" && options[list.selectedIndex]?.hint) || control.help;
    },
  };
}

/** A slider on a logarithmic scale, and a text box for the exact value. @param {any} first */
function slider(first) {
  const id = idOf(first.field);
  const range = make("input", { id, type: "range", min: "0", step: "1" });
  const exact = make("input", { type: "text", id: `${id}-exact`, spellcheck: false });
  const help = make("p", { className: "help", id: `${id}-help` });
  range.setAttribute("aria-describedby", help.id);
  exact.setAttribute("aria-label", `${first.label}, exactly`);
  const label = make("label", { htmlFor: id, textContent: first.label });
  const root = make("div", { className: "control" }, label, make("div", { className: "slide" }, range, exact), help);
  let texts = first.texts;
  let moving = false;
  const take = (/** @type {string} */ text, /** @type {"push" | "replace"} */ how) => {
    state.set([[first.field, text]]);
    changed(how);
  };
  range.addEventListener("input", () => {
    exact.value = texts[range.valueAsNumber];
    range.setAttribute("aria-valuetext", exact.value);
    // one entry of the history for each drag, so that Back restores the value before it
    take(exact.value, moving ? "replace" : "push");
    moving = true;
  });
  range.addEventListener("change", () => (moving = false));
  exact.addEventListener("change", () => take(exact.value.trim(), "push"));
  return {
    root,
    update(/** @type {any} */ control) {
      texts = control.texts;
      range.max = String(texts.length - 1);
      if (moving) return;
      range.valueAsNumber = control.position;
      range.setAttribute("aria-valuetext", control.value);
      if (document.activeElement !== exact) exact.value = control.value;
      help.textContent = control.help;
    },
  };
}

// ---- all settings as text ------------------------------------------------------------------------------------------------

const settings = make("textarea", { id: "settings", rows: 4, spellcheck: false });
const settingsHelp = make(
  "p",
  { className: "help", id: "settings-help" },
  "One setting per line, in the form of --set: any field of a scenario, such as strategy.bucket=50 MiB. Applied on leaving the box.",
);
settings.setAttribute("aria-describedby", settingsHelp.id);
const settingsBox = make(
  "details",
  { open: innerWidth >= 960 },
  make("summary", {}, "All changes"),
  make("div", { className: "control" }, make("label", { htmlFor: "settings", textContent: "Settings" }), settings, settingsHelp),
);
controls.set("settings", { root: settingsBox.querySelector(".control"), update: () => {} });
settings.addEventListener("change", () => {
  const lines = settings.value.split("\n").map((/** @type {string} */ line) => line.trim());
  state.sets = lines.filter(Boolean).map(split);
  changed("push");
});

function showSettings() {
  if (document.activeElement !== settings) settings.value = state.sets.map(([field, text]) => `${field}=${text}`).join("\n");
}

// ---- the rest of the page ------------------------------------------------------------------------------------------------

const scenarios = /** @type {HTMLSelectElement} */ (at("scenario"));
scenarios.addEventListener("change", () => {
  state.scenario = scenarios.value;
  state.sets = [];
  changed("push");
});
at("reset").addEventListener("click", () => {
  const now = state.scenario;
  state.read(begin);
  if (state.scenario !== now) {
    state.scenario = now;
    state.sets = [];
  }
  changed("push");
});
for (const button of document.querySelectorAll("[data-zoom]")) {
  button.addEventListener("click", () => {
    const how = /** @type {HTMLElement} */ (button).dataset.zoom;
    if (how === "all") timeline.whole();
    else timeline.zoom(how === "in" ? 1.5 : 1 / 1.5);
  });
}
at("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(at("command").textContent);
  at("copy").textContent = "Copied";
  setTimeout(() => (at("copy").textContent = "Copy"), 1500);
});
const theme = /** @type {HTMLSelectElement} */ (at("theme"));
theme.value = document.documentElement.dataset.theme || "";
theme.addEventListener("change", () => {
  if (theme.value) document.documentElement.dataset.theme = theme.value;
  else delete document.documentElement.dataset.theme;
  try {
    if (theme.value) localStorage.setItem("scaleproof-theme", theme.value);
    else localStorage.removeItem("scaleproof-theme");
  } catch { /* without storage the choice lasts until the page is closed */ }
  timeline.draw();
});
at("controls").addEventListener("submit", (event) => event.preventDefault());
addEventListener("popstate", () => {
  state.read(location.search || begin);
  scenarios.value = state.scenario;
  changed("none");
});

async function start() {
  at("controls").append(settingsBox);
  const library = await fetched("/api/library");
  if (library.error) return showProblem(library.error);
  scenarios.replaceChildren(...library.scenarios.map((/** @type {string} */ name) => make("option", { value: name, textContent: name })));
  begin = library.query;
  state.read(begin);
  if (location.search) {
    state.sets = [];
    state.read(location.search);
  }
  scenarios.value = state.scenario;
  changed("replace");
}

start();
