// A list with groups that is searched by typing: an ARIA combobox.

import { make } from "./dom.js";

/** @typedef {{title: string, options: {value: string, label: string, hint?: string}[]}} Group */

/** Turns an input into a combobox. @param {HTMLInputElement} input @param {(value: string) => void} chosen
 * @returns {{show: (groups: Group[], value: string) => void}} */
export function picker(input, chosen) {
  const list = make("div", { id: `${input.id}-list`, className: "options", hidden: true });
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Options");
  input.after(list);
  for (const [name, value] of Object.entries({
    role: "combobox", "aria-expanded": "false", "aria-autocomplete": "list", "aria-controls": list.id, autocomplete: "off", spellcheck: "false",
  })) input.setAttribute(name, value);
  /** @type {Group[]} */
  let groups = [];
  let value = "";
  let active = -1;
  const entries = () => /** @type {HTMLElement[]} */ ([...list.querySelectorAll("[role=option]")]);

  /** @param {string} words */
  function fill(words) {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (/** @type {any} */ one) => wanted.every((word) => `${one.label} ${one.hint || ""}`.toLowerCase().includes(word));
    const found = groups.map((group) => ({ ...group, options: group.options.filter(fits) })).filter((group) => group.options.length);
    list.replaceChildren(...found.map(section));
    if (!found.length) list.append(make("p", { className: "help" }, "Nothing matches; use other or fewer words."));
    mark(entries().findIndex((one) => one.dataset.value === value));
  }

  /** @param {Group} group @returns {HTMLElement} */
  function section(group) {
    const box = make("div", {});
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", group.title || "Options");
    if (group.title) {
      const title = make("p", { className: "group" }, group.title);
      title.setAttribute("aria-hidden", "true");
      box.append(title);
    }
    for (const one of group.options) {
      const entry = make("div", { className: "option" }, make("b", {}, one.label), ...(one.hint ? [make("span", {}, one.hint)] : []));
      entry.id = `${list.id}-${one.value.replace(/[^a-z0-9]/gi, "-")}`;
      entry.setAttribute("role", "option");
      entry.dataset.value = one.value;
      // before the input loses the focus
      entry.addEventListener("mousedown", (event) => {
        event.preventDefault();
        take(one.value);
      });
      box.append(entry);
    }
    return box;
  }

  /** @param {number} place */
  function mark(place) {
    active = place;
    entries().forEach((one, i) => one.setAttribute("aria-selected", String(i === place)));
    const entry = entries()[place];
    if (entry) input.setAttribute("aria-activedescendant", entry.id);
    else input.removeAttribute("aria-activedescendant");
    if (entry && !list.hidden) list.scrollTop = entry.offsetTop - list.clientHeight / 2;
  }

  function open() {
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    fill("");
    input.select();
  }

  function close() {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
    input.value = value;
  }

  /** @param {string} text */
  function take(text) {
    const isNew = text !== value;
    value = text;
    close();
    if (isNew) chosen(text);
  }

  input.addEventListener("focus", open);
  input.addEventListener("click", () => list.hidden && open());
  input.addEventListener("blur", close);
  input.addEventListener("input", () => {
    list.hidden = false;
    fill(input.value);
    mark(entries().length ? 0 : -1);
  });
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      if (list.hidden) open();
      else mark(Math.min(entries().length - 1, Math.max(0, active + step)));
    } else if (event.key === "Enter" && !list.hidden && entries()[active]) take(entries()[active].dataset.value);
    else if (event.key === "Escape" && !list.hidden) close();
    else return;
    event.preventDefault();
  });
  return {
    show(newGroups, newValue) {
      groups = newGroups;
      value = newValue;
      if (document.activeElement !== input) input.value = value;
    },
  };
}
