// The form: groups of controls, each of which changes fields of the scenario. Controls that stay keep their element and focus.

import { at, button, make, term } from "./dom.js";
import { picker } from "./picker.js";
import { split, state } from "./state.js";

/** @typedef {{apply: (move: {sets?: string[], gpus?: number}, how?: "push" | "replace", note?: string) => void,
 *   drag: (isMoving: boolean) => void}} Moves what a control does */

/** @type {Map<string, {root: HTMLElement, update: (control: any) => void}>} by field */
export const controls = new Map();
/** @type {Moves} */
let moves;

/** @param {Moves} given */
export function startControls(given) {
  moves = given;
  at("controls").append(settingsBox);
  at("controls").addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
}

/** Updates the form. @param {any[]} groups @param {boolean} wrong whether they belong to the scenario without invalid settings */
export function showControls(groups, wrong) {
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
      // all groups are open where they fit next to the prediction
      box = make("details", { open: innerWidth >= 960 }, make("summary", {}, group.title));
      box.dataset.title = group.title;
      form.insertBefore(box, settingsBox);
    }
    let before = box.firstElementChild;
    for (const control of group.controls) {
      if (!controls.has(control.field)) controls.set(control.field, KINDS[control.kind](control));
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
  const value = control.kind === "gpus" && state.gpus !== null ? state.gpus : state.text(control.field);
  if (value === undefined || !control.options) return value === undefined ? control : { ...control, value };
  const known = control.options.some((/** @type {any} */ one) => one.says === value);
  const options = known ? control.options : [{ says: value, label: value, sets: [] }, ...control.options];
  return { ...control, options, value };
}

/** @param {string} field @returns {string} */
const idOf = (field) => `control-${field.replace(/[^a-z0-9]/gi, "-")}`;

/** The frame of a control: its label, with an explanation, and a help text. @param {any} first @param {...Node} inputs */
function framed(first, ...inputs) {
  const id = idOf(first.field);
  const help = make("p", { className: "help", id: `${id}-help` });
  const label = make("div", { className: "label" }, make("label", { htmlFor: id, textContent: first.label }));
  if (first.term) {
    const mark = term("?", first.term);
    mark.setAttribute("role", "note");
    mark.setAttribute("aria-label", `${first.label}: ${first.term}`);
    label.append(mark);
  }
  return { id, help, root: make("div", { className: "control" }, label, ...inputs, help) };
}

/** What an option needs in addition to its name, with a button that does it. @param {HTMLElement} root @param {any} option */
function offer(root, option) {
  root.querySelector(".offer")?.remove();
  if (!option) return;
  const box = make("div", { className: "offer" }, make("p", {}, option.reason));
  box.setAttribute("role", "status");
  if (option.offer) box.append(button(option.offer, () => moves.apply({ sets: option.sets })));
  root.append(box);
}

/** Applies an option, or offers it with its reason. @param {HTMLElement} root @param {any} option @param {() => void} back */
function take(root, option, back) {
  offer(root, option.reason ? option : null);
  if (option.reason) back();
  else moves.apply({ sets: option.sets }, "push", option.sets.length > 1 ? `Changed together: ${option.sets.join(", ")}` : "");
}

/** A list of options. @param {any} first */
function choice(first) {
  const list = make("select", { id: idOf(first.field) });
  const { root, help } = framed(first, list);
  list.setAttribute("aria-describedby", help.id);
  let shown = first;
  const select = () => (list.selectedIndex = shown.options.findIndex((/** @type {any} */ one) => one.says === shown.value));
  list.addEventListener("change", () => take(root, shown.options[list.selectedIndex], select));
  return {
    root,
    update(/** @type {any} */ control) {
      if (control.value !== shown.value) offer(root, null);
      if (JSON.stringify(shown.options) !== JSON.stringify(control.options) || !list.options.length) {
        list.replaceChildren(...control.options.map((/** @type {any} */ one) =>
          make("option", { textContent: one.reason ? `${one.label} …` : one.label, title: one.reason || one.hint || "" })));
      }
      shown = control;
      select();
      help.textContent = control.help || shown.options[list.selectedIndex]?.hint || "";
    },
  };
}

/** A long list that is searched by typing. @param {any} first */
function search(first) {
  const input = make("input", { id: idOf(first.field), type: "text" });
  const { root, help } = framed(first, input);
  input.setAttribute("aria-describedby", help.id);
  let shown = first;
  const group = (/** @type {any} */ control) => [{ title: "", options: control.options.map((/** @type {any} */ one) => ({ value: one.says, label: one.label, hint: one.reason || one.hint })) }];
  const list = picker(input, (value) => {
    take(root, shown.options.find((/** @type {any} */ one) => one.says === value), () => list.show(group(shown), shown.value));
  });
  return {
    root,
    update(/** @type {any} */ control) {
      if (control.value !== shown.value) offer(root, null);
      shown = control;
      list.show(group(control), control.value);
      help.textContent = control.help || control.options.find((/** @type {any} */ one) => one.says === control.value)?.hint || "";
    },
  };
}

/** A slider and a box for the exact value. @param {any} first @param {(text: string, how: "push" | "replace") => void} change
 * @param {string} mode of a phone's keyboard */
function ranged(first, change, mode) {
  const id = idOf(first.field);
  const range = make("input", { id, type: "range", min: "0", step: "1" });
  const exact = make("input", { type: "text", id: `${id}-exact`, spellcheck: false, inputMode: mode });
  const { root, help } = framed(first, make("div", { className: "slide" }, range, exact));
  range.setAttribute("aria-describedby", help.id);
  exact.setAttribute("aria-label", `${first.label}, exactly`);
  const shown = { texts: /** @type {string[]} */ ([]), moving: false };
  range.addEventListener("input", () => {
    exact.value = shown.texts[range.valueAsNumber];
    range.setAttribute("aria-valuetext", exact.value);
    if (!shown.moving) moves.drag(true);
    // one entry of the history for each drag, so that Back restores the value before it
    change(exact.value, shown.moving ? "replace" : "push");
    shown.moving = true;
  });
  range.addEventListener("change", () => {
    shown.moving = false;
    moves.drag(false);
  });
  exact.addEventListener("change", () => change(exact.value.trim(), "push"));
  return {
    root,
    /** @param {string[]} texts @param {number} position @param {string} value @param {string} words */
    show(texts, position, value, words) {
      shown.texts = texts;
      range.max = String(texts.length - 1);
      help.textContent = words;
      if (shown.moving) return;
      range.valueAsNumber = position;
      range.setAttribute("aria-valuetext", value);
      if (document.activeElement !== exact) exact.value = value;
    },
  };
}

/** A quantity on a logarithmic scale. @param {any} first */
function slider(first) {
  const { root, show } = ranged(first, (text, how) => moves.apply({ sets: [`${first.field}=${text}`] }, how), "text");
  return { root, update: (/** @type {any} */ control) => show(control.texts, control.position, control.value, control.help) };
}

/** The number of GPUs. @param {any} first */
function gpus(first) {
  const { root, show } = ranged(first, (text, how) => {
    const number = Number(text.replaceAll(",", ""));
    if (Number.isInteger(number) && number > 0) moves.apply({ gpus: number }, how);
  }, "numeric");
  return {
    root,
    update(/** @type {any} */ control) {
      const counts = control.counts;
      const nearest = counts.findLastIndex((/** @type {number} */ count) => count <= control.value);
      show(counts.map(String), Math.max(0, nearest), String(control.value), control.help);
    },
  };
}

/** The price of a GPU-hour, from which the node's follows. @param {any} first */
function price(first) {
  const input = make("input", { id: idOf(first.field), type: "number", min: "0", step: "any", placeholder: "none" });
  const { root, help } = framed(first, make("div", { className: "unit" }, input, make("span", {}, first.unit)));
  let per = first.per;
  input.setAttribute("aria-describedby", help.id);
  input.addEventListener("change", () => {
    const set = input.value === "" ? "null" : `${Number((Number(input.value) * per).toPrecision(12))} USD/h`;
    moves.apply({ sets: [`${first.field}=${set}`] });
  });
  return {
    root,
    update(/** @type {any} */ control) {
      per = control.per;
      help.textContent = control.help;
      if (document.activeElement !== input) input.value = control.value;
    },
  };
}

/** A quantity that follows from others. @param {any} first */
function fact(first) {
  const value = make("output", { id: idOf(first.field) });
  const { root } = framed(first, value);
  return { root, update: (/** @type {any} */ control) => (value.textContent = control.value) };
}

const KINDS = { choice, search, slider, gpus, price, fact };

// ---- what is wrong, and where ------------------------------------------------------------------------------------------------

/** Marks the control that a problem belongs to. @param {string} field @returns {string} its label */
export function markWrong(field) {
  for (const wrong of document.querySelectorAll(".wrong")) unmark(wrong);
  const control = controls.get(nearest(field));
  if (!control) return "";
  control.root.classList.add("wrong");
  for (const input of control.root.querySelectorAll("select, input, textarea")) input.setAttribute("aria-invalid", "true");
  const box = control.root.parentElement;
  if (box instanceof HTMLDetailsElement) box.open = true;
  return control.root.querySelector("label").textContent;
}

/** @param {string} field @returns {string} the control's field that equals this one, is within it or contains it */
function nearest(field) {
  const names = [...controls.keys(), "settings"];
  if (!field) return "";
  const around = { batch: "batch.total", strategy: "gpus", "strategy.workers": "gpus" };
  return names.find((name) => name === field) || around[field] || names.find((name) => name.startsWith(`${field}.`)) || "settings";
}

/** @param {Element} root */
function unmark(root) {
  root.classList.remove("wrong");
  for (const input of root.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
}

// ---- all settings as text ----------------------------------------------------------------------------------------------------

const settings = make("textarea", { id: "settings", rows: 4, spellcheck: false });
const settingsHelp = make(
  "p",
  { className: "help", id: "settings-help" },
  "One per line, as --set takes them: any field of a scenario, such as strategy.bucket=50 MiB. Applied on leaving the box.",
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
  state.gpus = null;
  moves.apply({});
});

/** Shows the settings as text, unless they are being edited. */
export function showSettings() {
  const lines = state.sets.map(([field, text]) => `${field}=${text}`);
  if (document.activeElement !== settings) settings.value = lines.join("\n");
}
