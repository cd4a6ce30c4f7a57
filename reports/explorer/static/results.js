// Shows a prediction: headline, figures, breakdown, memory, timeline, evidence.

import { at, make, showBar, showLegend, term } from "./dom.js";
import { Timeline } from "./timeline.js";

export const timeline = new Timeline(at("timeline"), at("reading"));

/** @param {any} answer @param {(one: any) => Node} remedy a button for what makes a scenario fit */
export function showPrediction(answer, remedy) {
  const isFull = Boolean(answer.controls);
  at("results").hidden = false;
  const isOver = answer.memory?.fits === false;
  at("headline").textContent = answer.headline;
  at("glance").classList.toggle("over", isOver);
  at("subject").textContent = answer.subject;
  // a first estimate knows no settings that fit, which a full answer found a moment ago
  if (!isOver || isFull || !at("remedies").children.length) at("remedies").replaceChildren(...answer.remedies.map(remedy));
  at("bottleneck").textContent = answer.bottleneck;
  at("description").textContent = answer.description;
  document.title = isOver ? `Out of memory: ${answer.name}` : `${answer.numbers[0].value} ${answer.numbers[0].unit}: ${answer.name}`;
  at("status").textContent = answer.exact ? "" : "First estimate, up to a few percent off …";
  showNumbers(answer.numbers);
  showBar(at("causes"), answer.breakdown.map((/** @type {any} */ one) => one.share), answer.breakdown.map((/** @type {any} */ one) => one.colour));
  showLegend(at("cause-list"), answer.breakdown);
  showCommunication(answer.communication);
  showMemory(answer.memory);
  showTimeline(answer.timeline, answer.ranks, isFull);
  if (answer.evidence) showEvidence(answer.evidence);
  at("warnings").hidden = !answer.warnings.length;
  at("warnings").replaceChildren(...answer.warnings.map((/** @type {string} */ one) => make("li", {}, one)));
}

/** @param {any[]} numbers null in a first estimate: the old value stays, greyed */
function showNumbers(numbers) {
  const list = at("numbers");
  const known = numbers.map((one) => one.key + one.label).join();
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

/** Bars of exposed and hidden time, on the scale of the longest. @param {any[]} parts */
function showCommunication(parts) {
  at("communication").hidden = !parts.length;
  const most = Math.max(...parts.map((one) => one.exposed + one.hidden));
  at("communication-list").replaceChildren(...parts.map((one) => {
    const bar = make("div", { className: "bar thin" });
    showBar(bar, [one.exposed / most, one.hidden / most], [one.colour, `color-mix(in srgb, ${one.colour} 30%, transparent)`]);
    bar.setAttribute("aria-hidden", "true");
    return make("li", {}, make("span", {}, one.label), make("span", { className: "text" }, one.text), bar);
  }));
}

/** @param {any} memory */
function showMemory(memory) {
  at("memory").closest("section").hidden = !memory;
  if (!memory) return;
  const whole = Math.max(memory.total_bytes, memory.capacity_bytes || 0) || 1;
  at("memory-text").textContent = memory.text;
  at("memory-text").classList.toggle("bad", memory.fits === false);
  showBar(at("memory"), memory.holders.map((/** @type {any} */ one) => one.bytes / whole), memory.holders.map((/** @type {any} */ one) => one.colour));
  at("capacity").style.left = `calc(${((memory.capacity_bytes || whole) / whole) * 100}% - 2px)`;
  at("capacity").hidden = memory.fits !== false;
  showLegend(at("memory-list"), memory.holders);
}

/** @param {any} tracks @param {number} ranks @param {boolean} isFull */
function showTimeline(tracks, ranks, isFull) {
  at("timeline").closest("section").hidden = !tracks;
  if (!tracks) return;
  const rows = tracks.rows.length < tracks.of ? `The first ${tracks.rows.length} of ${tracks.of} groups of equivalent ranks` : "One row for each group of equivalent ranks";
  const all = ranks > tracks.rows.length ? ` (${ranks.toLocaleString("en")} ranks in all)` : "";
  at("timeline-words").textContent = `${rows}${all}. The narrow row below each rank shows transfers that overlap with compute.`;
  at("timeline").setAttribute("aria-label", `Timeline of ${tracks.rows.length} rows and ${tracks.boxes} boxes`);
  showLegend(at("kinds"), Object.values(tracks.kinds).map((/** @type {any} */ one) => ({ ...one, label: one.name, text: "" })));
  timeline.show(tracks, isFull);
}

/** @param {any} evidence */
function showEvidence(evidence) {
  const found = evidence.similar > 0;
  at("evidence-words").textContent = found
    ? `${evidence.similar} published runs are similar in GPU, framework, model, number of GPUs and layout. Their predictions have a median error of ${evidence.median_error}; ${evidence.coverage} of the measured times are in the 90 % interval. The nearest:`
    : "No published run in the tables of this version is similar in GPU, framework, model, number of GPUs and layout.";
  at("evidence").hidden = !found;
  if (!found) return;
  const titles = ["Published run", "GPUs", "Layout", "Measured", "Predicted", "Error", "In interval"];
  const head = make("tr", {}, ...titles.map((text) => make("th", { scope: "col" }, text)));
  const rows = evidence.runs.map((/** @type {any} */ one) =>
    make("tr", {}, ...[term(one.model, `${one.id}, ${one.framework}. scaleproof predict published:${one.id} predicts it.`), one.gpus, one.layout, one.measured, one.predicted, one.error, one.covered ? "yes" : "no"]
      .map((cell, i) => {
        const box = make("td", {}, cell);
        box.dataset.title = titles[i];
        return box;
      })));
  at("evidence").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
}

/** Buttons and keys of the timeline. */
export function startTimeline() {
  for (const zoom of document.querySelectorAll("[data-zoom]")) {
    zoom.addEventListener("click", () => {
      const how = /** @type {HTMLElement} */ (zoom).dataset.zoom;
      if (how === "all") timeline.whole();
      else timeline.zoom(how === "in" ? 1.5 : 1 / 1.5);
    });
  }
}

/** @param {any} problem @param {string} label of the control that it belongs to @param {(one: any) => Node} remedy */
export function showProblem(problem, label, remedy) {
  const box = at("problem");
  box.hidden = !problem;
  if (!problem) return;
  const kept = at("results").hidden ? "" : " The prediction shown is the last valid one.";
  // the message about GPUs begins with their number
  const field = problem.field && problem.field !== "gpus" ? `${label && label !== "Settings" ? label : problem.field}: ` : "";
  if (at("results").hidden) at("headline").textContent = "No prediction yet";
  const text = `${field}${problem.message}`.replace(/[.\s]+$/, "").replace(/\?$/, "?");
  box.replaceChildren(make("p", {}, `${text}${/\?$/.test(text) ? "" : "."}${kept}`), ...problem.remedies.map(remedy));
  at("status").textContent = "";
  at("answer").setAttribute("aria-busy", "false");
}

