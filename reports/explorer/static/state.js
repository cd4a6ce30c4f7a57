// The state of the page, which is its address: a scenario with settings as on the command line, a number of GPUs, and a pinned
// scenario A that it is compared with.

/** @typedef {[string, string]} Setting a field and its value, as --set takes them */
/** @typedef {{label: string, sets?: string[], gpus?: number, plan?: number}} Remedy a button that changes the scenario */

export const state = {
  scenario: "",
  /** @type {Setting[]} */
  sets: [],
  /** @type {number | null} GPUs that were chosen last, until the settings that they stand for are known */
  gpus: null,
  /** @type {string | null} the query of the pinned scenario */
  pinned: null,

  /** @returns {string} the query of the scenario alone */
  own() {
    const parts = [["scenario", this.scenario], ...this.sets.map(([field, text]) => ["set", `${field}=${text}`])];
    if (this.gpus !== null) parts.push(["gpus", String(this.gpus)]);
    return `?${new URLSearchParams(parts)}`;
  },

  /** @returns {string} the query of the page's address */
  query() {
    return this.pinned === null ? this.own() : `${this.own()}&${new URLSearchParams([["a", this.pinned]])}`;
  },

  /** @param {string} query */
  read(query) {
    const parameters = new URLSearchParams(query);
    this.scenario = parameters.get("scenario") || this.scenario;
    this.sets = parameters.getAll("set").map(split);
    this.gpus = parameters.has("gpus") ? Number(parameters.get("gpus")) : null;
    this.pinned = parameters.get("a");
  },

  /** Later settings replace earlier ones of the same field, and of fields within it. @param {string[]} texts */
  set(texts) {
    for (const [field, text] of texts.map(split)) {
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
export function split(text) {
  const place = text.indexOf("=");
  return place < 0 ? [text, ""] : [text.slice(0, place), text.slice(place + 1)];
}

/** @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>} null if the request was cancelled */
export async function fetched(path, signal) {
  try {
    const response = await fetch(path, { signal });
    return await response.json();
  } catch (error) {
    if (signal?.aborted) return null;
    return { error: { field: "", message: "The server does not respond; is scaleproof explore still running?", remedies: [] } };
  }
}

/** Reads lines of JSON as they come. @param {string} path @param {AbortSignal} signal @param {(line: any) => void} each */
export async function fetchedLines(path, signal, each) {
  try {
    const response = await fetch(path, { signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const lines = (rest + part.value).split("\n");
      rest = lines.pop();
      for (const line of lines) each(JSON.parse(line));
    }
    if (rest) each(JSON.parse(rest));
  } catch (error) {
    if (!signal.aborted) each({ error: { field: "", message: "The server does not respond; is scaleproof explore still running?", remedies: [] } });
  }
}
