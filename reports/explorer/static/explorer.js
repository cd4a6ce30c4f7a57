// The explorer's page. Its state is the address: a scenario and settings, as on the command line.
// Each change sends a request for a first estimate, shown at once, then for the full answer with intervals and new options, then
// for curves around the scenario and the comparison with the pinned one.

import { BandwidthChart, ScalingChart } from "./charts.js";
import { closePlans, findPlans, showComparison, startComparison } from "./compare.js";
import { markWrong, showControls, showSettings, startControls } from "./controls.js";
import { at, button, make, showLegend } from "./dom.js";
import { picker } from "./picker.js";
import { showPrediction, showProblem, startTimeline, timeline } from "./results.js";
import { fetched, split, state } from "./state.js";

/** @typedef {import("./state.js").Remedy} Remedy */

// time without changes after which the full answer is requested
const PAUSE_MS = 150;

let version = 0;
let isRequesting = false;
let begin = "";
/** @type {AbortController | null} */
let refining = null;
/** @type {{query: string, sets: string[]} | null} the settings that the last chosen number of GPUs stands for */
let resolved = null;
/** @type {any} the latest full answer */
let latest = null;
let isDragging = false;

/** Takes over a changed state. @param {"push" | "replace" | "none"} how what happens to the address */
function changed(how) {
  version += 1;
  if (how === "push") history.pushState(null, "", state.query());
  if (how === "replace") history.replaceState(null, "", state.query());
  scenarios.show(groups, state.scenario);
  showSettings();
  refining?.abort();
  requestFirst();
}

/** Changes settings or the number of GPUs. @param {{sets?: string[], gpus?: number}} move
 * @param {"push" | "replace"} [how] @param {string} [note] what was set together */
function apply(move, how = "push", note = "") {
  // while a slider of GPUs moves, each number is tried on the scenario from which the drag began
  if (!(isDragging && move.gpus)) adopt();
  state.set(move.sets || []);
  if (move.gpus) state.gpus = move.gpus;
  at("note").textContent = note;
  changed(how);
}

/** Replaces a number of GPUs by the settings that it stands for. */
function adopt() {
  if (resolved?.query !== state.own()) return;
  state.sets = resolved.sets.map(split);
  state.gpus = null;
}

/** @param {Remedy} one @returns {HTMLButtonElement} */
function remedy(one) {
  return button(one.label, () => {
    if (one.plan) findPlans(one.plan, applyPlan);
    else apply(one);
  });
}

/** @param {string[]} sets */
function applyPlan(sets) {
  // the plan is one for the settings without a number of GPUs that could not be used
  state.gpus = null;
  state.set(sets);
  at("note").textContent = `Plan applied: ${sets.join(", ")}`;
  changed("push");
}

// ---- requests ----------------------------------------------------------------------------------------------------------------

/** Requests first estimates, one at a time: during a request only the latest change is queued. */
async function requestFirst() {
  if (isRequesting) return;
  isRequesting = true;
  let requested = -1;
  at("answer").setAttribute("aria-busy", "true");
  while (requested !== version) {
    requested = version;
    const answer = await fetched(`/api/answer${state.own()}&look=first`);
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
  const answer = await fetched(`/api/answer${state.own()}`, own.signal);
  if (!answer || requested !== version) return;
  latest = answer.error ? null : answer;
  for (const id of ["plan", "pin"]) at(id).disabled = !latest;
  show(answer, requested);
  at("answer").setAttribute("aria-busy", "false");
  if (answer.error) return;
  await Promise.all([showCurves(own.signal, answer.query), showComparison(own.signal, answer)]);
  if (requested === version) document.body.dataset.complete = String(requested);
}

// ---- showing -----------------------------------------------------------------------------------------------------------------

/** @param {any} answer @param {number} requested */
function show(answer, requested) {
  if (answer.sets) resolved = { query: state.own(), sets: answer.sets };
  if (answer.controls) showControls(answer.controls, Boolean(answer.error));
  showProblem(answer.error, markWrong(answer.error ? answer.error.field : ""), remedy);
  if (answer.command) at("command").textContent = answer.command;
  if (answer.query) at("yaml").setAttribute("href", `/scenario.yaml${answer.query}`);
  if (answer.sets) at("note").textContent = gpusNote(answer.sets);
  if (!answer.error) showPrediction(answer, remedy);
  document.body.dataset.shown = String(requested);
}

/** @param {string[]} sets @returns {string} what follows from a number of GPUs */
function gpusNote(sets) {
  const known = new Set(state.sets.map(([field, text]) => `${field}=${text}`));
  const fresh = sets.filter((one) => !known.has(one));
  return fresh.length ? `Also changed: ${fresh.join(", ")}` : "";
}

const scaling = new ScalingChart(at("scaling"), (gpus) => apply({ gpus }));
const bandwidth = new BandwidthChart(at("bandwidth"));

/** @param {AbortSignal} signal @param {string} query */
async function showCurves(signal, query) {
  if (at("curves").dataset.query === query) return;
  at("curves").classList.add("stale");
  const found = await fetched(`/api/answer${query}&look=curves`, signal);
  if (!found) return;
  at("curves").classList.remove("stale");
  at("curves").hidden = Boolean(found.error);
  if (found.error) return;
  at("curves").dataset.query = query;
  addInterval(found.scaling);
  const several = found.scaling.points.length > 1;
  at("scaling").closest("section").hidden = !several && !found.scaling.refused.length;
  at("scaling").hidden = !several;
  if (several) scaling.show(found);
  const interval = found.scaling.points.some((/** @type {any} */ one) => one.low) ? " Blue area or line: 90 % prediction interval." : "";
  const full = found.scaling.points.some((/** @type {any} */ one) => one.fits === false) ? " Hollow red points: out of memory." : "";
  at("scaling-words").textContent = several ? `Global batch kept. Dashed: linear scaling.${interval}${full} Choose a point to use its GPUs.` : "";
  showRefused(found.scaling.refused);
  at("bandwidth").closest("section").hidden = !found.links.length;
  if (found.links.length) bandwidth.show(found);
  showLegend(at("link-list"), found.links.map((/** @type {any} */ one, /** @type {number} */ i) => ({
    label: one.name, help: one.field, colour: i ? "var(--second)" : "var(--first)",
    text: `now ${one.points.find((/** @type {any} */ p) => p.factor === 1).bandwidth}`,
  })));
}

/** Gives the point of the scenario itself the interval of the full answer, if the curve has no interval. @param {any} scaling */
function addInterval(scaling) {
  const now = scaling.points.find((/** @type {any} */ one) => one.gpus === scaling.now);
  const [low, high] = latest?.prediction_interval_s || [0, 0];
  if (!now || now.low || !low || latest.gpus !== scaling.now) return;
  now.low = (latest.rate * latest.step_time_s) / high;
  now.high = (latest.rate * latest.step_time_s) / low;
}

/** Numbers of GPUs that the degrees or the batch do not allow, with the first reason. @param {any[]} refused */
function showRefused(refused) {
  at("refused").hidden = !refused.length;
  if (!refused.length) return;
  const numbers = refused.map((one) => one.gpus.toLocaleString("en")).join(", ");
  const offers = refused.slice(0, 2).map((one) => button(`Plan for ${one.gpus.toLocaleString("en")} GPUs`, () => findPlans(one.gpus, applyPlan)));
  at("refused").replaceChildren(make("p", { className: "soft" }, `Not possible with these degrees of parallelism and this global batch: ${numbers} GPUs. ${refused[0].reason}.`), ...offers);
}

// ---- the rest of the page ----------------------------------------------------------------------------------------------------

/** @type {import("./picker.js").Group[]} */
let groups = [];
const scenarios = picker(at("scenario"), (name) => {
  state.scenario = name;
  state.sets = [];
  state.gpus = null;
  at("note").textContent = "";
  closePlans();
  changed("push");
});
at("reset").addEventListener("click", () => {
  const now = state.scenario;
  const pinned = state.pinned;
  state.read(begin);
  state.pinned = pinned;
  at("note").textContent = "";
  if (state.scenario !== now) {
    state.scenario = now;
    state.sets = [];
  }
  changed("push");
});
at("plan").addEventListener("click", () => latest && findPlans(latest.gpus, applyPlan));
at("plan-close").addEventListener("click", closePlans);
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
addEventListener("popstate", () => {
  state.read(location.search || begin);
  at("note").textContent = "";
  changed("none");
});

async function start() {
  startControls({
    apply,
    drag(isMoving) {
      if (isMoving) adopt();
      isDragging = isMoving;
    },
  });
  startTimeline();
  startComparison(changed, () => latest);
  const library = await fetched("/api/library");
  if (library.error) {
    showProblem(library.error, "", remedy);
    return;
  }
  groups = library.groups.map((/** @type {any} */ group) => ({
    title: group.title,
    options: group.scenarios.map((/** @type {any} */ one) => ({ value: one.name, label: one.name, hint: one.description })),
  }));
  begin = library.query;
  state.read(begin);
  if (location.search) {
    state.sets = [];
    state.read(location.search);
  }
  changed("replace");
}

start();
