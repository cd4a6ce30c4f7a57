// The pinned scenario A next to the current one B, and the search for the best plan.

import { at, button, make } from "./dom.js";
import { fetched, fetchedLines, state } from "./state.js";

/** @param {string} text @param {...(Node|string)} cells @returns {HTMLElement} */
const row = (text, ...cells) => make("tr", {}, make("th", { scope: "row" }, text), ...cells.map((cell) => make("td", {}, cell)));

/** Shows how B differs from A. @param {AbortSignal} signal @param {any} now the full answer of B */
export async function showComparison(signal, now) {
  const box = at("comparison");
  box.hidden = state.pinned === null;
  if (box.hidden) return;
  if (box.dataset.shown !== state.query()) {
    at("comparison-words").textContent = "Comparing A with B …";
    const own = new URLSearchParams([["a", state.pinned]]);
    const found = await fetched(`/api/answer${now.query}&${own}&look=comparison`, signal);
    if (!found) return;
    box.dataset.shown = state.query();
    drawComparison(found);
  }
}

/** @param {any} found */
function drawComparison(found) {
  at("comparison-words").textContent = found.error ? `These cannot be compared: ${found.error.message}` : found.words;
  at("comparison-words").classList.toggle("tie", Boolean(found.tie));
  const tables = at("comparison-tables");
  tables.replaceChildren();
  if (found.error || !found.changed.length) return;
  const head = (/** @type {string[]} */ titles) => make("thead", {}, make("tr", {}, ...titles.map((text) => make("th", { scope: "col" }, text))));
  const effects = found.effects.map((/** @type {any} */ one) => row(one.name, one.a, one.b, make("b", {}, one.change), one.interval));
  const changed = found.changed.map((/** @type {any} */ one) => row(one.field, one.a, one.b));
  tables.append(
    make("table", {}, head(["", "A", "B", "Change", "90 % interval"]), make("tbody", {}, ...effects)),
    make("table", {}, head(["Changed", "A", "B"]), make("tbody", {}, ...changed)),
  );
}

/** Buttons of the comparison. @param {(how: "push") => void} changed @param {() => any} latest the latest full answer */
export function startComparison(changed, latest) {
  at("pin").addEventListener("click", () => {
    const answer = latest();
    if (!answer) return;
    state.pinned = answer.query;
    changed("push");
  });
  at("unpin").addEventListener("click", () => {
    state.pinned = null;
    changed("push");
  });
  at("swap").addEventListener("click", () => {
    const own = latest()?.query || state.own();
    const pinned = state.pinned;
    state.read(pinned);
    state.pinned = own;
    changed("push");
  });
}

// ---- the best plan -----------------------------------------------------------------------------------------------------------

/** @type {AbortController | null} */
let searching = null;

/** Ends a search and hides its card. */
export function closePlans() {
  searching?.abort();
  searching = null;
  at("plans").hidden = true;
}

/** Searches for the best plan on a number of GPUs. @param {number} gpus @param {(sets: string[]) => void} apply */
export async function findPlans(gpus, apply) {
  searching?.abort();
  const own = new AbortController();
  searching = own;
  const query = new URLSearchParams(state.own());
  query.set("gpus", String(gpus));
  query.set("look", "plan");
  at("plans").hidden = false;
  at("plan-list").replaceChildren();
  at("plan-words").textContent = `Searching the best plan on ${gpus.toLocaleString("en")} GPUs …`;
  at("plan-progress").hidden = false;
  at("plan-words").scrollIntoView({ block: "nearest" });
  await fetchedLines(`/api/answer?${query}`, own.signal, (line) => {
    if (line.progress) at("plan-words").textContent = `${line.progress[0].toUpperCase()}${line.progress.slice(1)} …`;
    else drawPlans(line, apply);
  });
}

/** @param {any} found @param {(sets: string[]) => void} apply */
function drawPlans(found, apply) {
  at("plan-progress").hidden = true;
  if (found.error) {
    at("plan-words").textContent = `No plan: ${found.error.message}.`;
    return;
  }
  const ties = found.plans.filter((/** @type {any} */ one) => one.tie).length;
  const surely = found.proved ? "no configuration that fits is faster" : "the search stopped at its limit";
  const tie = ties > 1 ? ` The first ${ties} are a tie.` : "";
  at("plan-words").textContent = `Best of ${found.considered.toLocaleString("en")} configurations on ${found.gpus.toLocaleString("en")} GPUs with this model and global batch (${surely}).${tie}${found.beaten ? "" : " No plan is faster than this scenario as it is."}`;
  at("plan-list").replaceChildren(...found.plans.map((/** @type {any} */ one) =>
    make("li", {},
      make("span", { className: "plan-rate" }, `${one.rate} ${found.unit}`),
      make("span", { className: "plan-label" }, one.label, make("span", { className: "soft" }, ` · ${one.memory}${one.tie ? "" : ` · ${((one.ratio - 1) * 100).toFixed(1)} %`}`)),
      button("Apply", () => apply(one.sets)))));
}
