// Elements of the page: finding, making, and legends with swatches.

/** @param {string} id @returns {any} */
export const at = (id) => document.getElementById(id);

/** @param {string} tag @param {Object<string, any>} [properties] @param {...(Node|string)} children @returns {any} */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** @param {string} text @param {() => void} onclick @param {string} [className] @returns {HTMLButtonElement} */
export function button(text, onclick, className = "") {
  return make("button", { type: "button", textContent: text, onclick, className });
}

/** A word with an explanation, shown on hover and focus. @param {string} text @param {string} words @returns {HTMLElement} */
export function term(text, words) {
  if (!words) return make("span", {}, text);
  const element = make("span", { className: "term", tabIndex: 0 }, text);
  element.dataset.words = words;
  return element;
}

/** A bar of parts side by side. @param {HTMLElement} bar @param {number[]} shares @param {string[]} colours */
export function showBar(bar, shares, colours) {
  while (bar.children.length > shares.length) bar.lastElementChild.remove();
  while (bar.children.length < shares.length) bar.append(make("div"));
  shares.forEach((share, i) => {
    const part = /** @type {HTMLElement} */ (bar.children[i]);
    part.style.width = `${share * 100}%`;
    part.style.background = colours[i];
  });
}

/** @param {HTMLElement} list @param {{label: string, text: string, help: string, colour: string}[]} entries */
export function showLegend(list, entries) {
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
  swatch.style.background = colour;
  return make("li", {}, swatch, term(label, help), make("span", { className: "text" }));
}

// ---- explanations ------------------------------------------------------------------------------------------------------------

const tip = make("div", { id: "tip", hidden: true });
tip.setAttribute("role", "tooltip");
document.body.append(tip);

/** @param {Event} event */
function explain(event) {
  const word = /** @type {HTMLElement} */ (event.target)?.closest?.(".term");
  if (!word) return;
  tip.textContent = word.dataset.words;
  tip.hidden = false;
  word.setAttribute("aria-describedby", "tip");
  const box = word.getBoundingClientRect();
  const left = Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
  const below = box.bottom + tip.offsetHeight + 8 < innerHeight;
  tip.style.left = `${Math.max(8, left) + scrollX}px`;
  tip.style.top = `${(below ? box.bottom + 6 : box.top - tip.offsetHeight - 6) + scrollY}px`;
}

/** @param {Event} event */
function stopExplaining(event) {
  const word = /** @type {HTMLElement} */ (event.target)?.closest?.(".term");
  if (!word) return;
  word.removeAttribute("aria-describedby");
  tip.hidden = true;
}

for (const name of ["mouseover", "focusin"]) document.addEventListener(name, explain);
for (const name of ["mouseout", "focusout"]) document.addEventListener(name, stopExplaining);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") tip.hidden = true;
});
