// Timeline on a canvas: a row per rank class and a box per task, with zoom, hover and keys.
// Times are whole numbers of parts of the step, in packed columns; see reports/explorer/timeline_columns.py.

/** @typedef {{length_ms: number, parts: number, rows: string[], of: number, merged: boolean,
 *   kinds: Object<string, {name: string, colour: string, help: string}>, row: Int32Array, track: Int32Array, kind: Int32Array,
 *   chunk: Int32Array, stage: Int32Array, microbatch: Int32Array, communication: Int32Array,
 *   communications: Object<string, string>, start: Int32Array, end: Int32Array, number: Int32Array}} Tracks */

const ROW = 30;
const AXIS = 24;
// top and height of tracks in a row, in pixels: blocking work, overlapped transfers, sends, receives
const TRACKS = [[2, 18], [22, 6], [22, 3], [25, 3]];
const MARGIN = 10;
// the darkest of the kinds with numbers: gradients of weights
const WEIGHT = 8;
const COLUMNS = ["row", "track", "kind", "chunk", "stage", "microbatch", "communication", "start", "end", "number"];

const probe = document.body.appendChild(Object.assign(document.createElement("span"), { hidden: true }));

/** @param {string} value a colour or a variable of the style sheet @returns {string} its value in the current theme */
function colour(value) {
  probe.style.color = value;
  return getComputedStyle(probe).color;
}

/** @param {number} ms @param {number} [whole] the time whose size decides the unit @returns {string} such as '12.3 ms' */
function time(ms, whole = ms) {
  const [size, unit] = whole >= 1e3 ? [1e3, "s"] : whole >= 1 ? [1, "ms"] : [1e-3, "us"];
  return `${Number((ms / size).toPrecision(4))} ${unit}`;
}

/** @param {string} text base64 of 32-bit integers, little-endian @returns {Int32Array} */
function unpacked(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return new Int32Array(bytes.buffer);
}

export class Timeline {
  /** @param {HTMLCanvasElement} canvas @param {HTMLElement} reading */
  constructor(canvas, reading) {
    this.canvas = canvas;
    this.reading = reading;
    /** @type {Tracks | null} */
    this.tracks = null;
    this.from = 0;
    this.to = 1;
    this.chosen = -1;
    // widths in pixels: of the names, of the area of boxes
    this.gutter = 0;
    this.plot = 1;
    /** @type {number | null} */
    this.dragged = null;
    this.isSeen = false;
    new IntersectionObserver(([entry]) => {
      this.isSeen = entry.isIntersecting;
      this.draw();
    }).observe(canvas);
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.grab(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => this.drop());
    canvas.addEventListener("pointerleave", () => this.choose(-1));
  }

  /** Shows another step; the visible part of the step stays.
   * @param {any} packed @param {boolean} always draws it also out of view, for printing */
  show(packed, always) {
    const columns = COLUMNS.map((name) => [name, unpacked(packed[name])]);
    /** @type {Tracks} */
    const tracks = { ...packed, ...Object.fromEntries(columns) };
    const isSame = this.tracks && this.tracks.rows.length === tracks.rows.length && this.tracks.row.length === tracks.row.length;
    this.tracks = tracks;
    if (!isSame) {
      this.from = 0;
      this.to = 1;
      this.chosen = -1;
    }
    this.canvas.style.height = `${tracks.rows.length * ROW + AXIS}px`;
    if (always || this.isSeen) this.draw();
  }

  /** @param {number} times @param {number} at the share of the view that stays where it is */
  zoom(times, at = 0.5) {
    const width = Math.min(1, Math.max(1e-4, (this.to - this.from) / times));
    const from = this.from + at * (this.to - this.from - width);
    this.look(from, width);
  }

  whole() {
    this.look(0, 1);
  }

  /** @param {number} from @param {number} width shares of the step */
  look(from, width) {
    this.from = Math.min(Math.max(0, from), 1 - width);
    this.to = this.from + width;
    this.draw();
  }

  /** @param {number} part @returns {number} pixels from the left */
  x(part) {
    return this.gutter + ((part / this.tracks.parts - this.from) / (this.to - this.from)) * this.plot;
  }

  draw() {
    const { canvas, tracks } = this;
    if (!tracks || !canvas.clientWidth) return;
    this.gutter = Math.min(150, Math.max(88, canvas.clientWidth * 0.17));
    this.plot = Math.max(1, canvas.clientWidth - this.gutter - MARGIN);
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(canvas.clientWidth * scale);
    canvas.height = Math.round(canvas.clientHeight * scale);
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    const inks = { ink: colour("var(--ink)"), soft: colour("var(--soft)"), line: colour("var(--line)"), card: colour("var(--card)") };
    this.drawAxis(context, inks);
    context.save();
    context.beginPath();
    context.rect(this.gutter, 0, this.plot, canvas.clientHeight);
    context.clip();
    this.drawBoxes(context, inks);
    context.restore();
    this.drawNames(context, inks);
  }

  /** @param {CanvasRenderingContext2D} context @param {Object<string, string>} inks */
  drawAxis(context, inks) {
    const { tracks, from, to } = this;
    const bottom = tracks.rows.length * ROW;
    const shownMs = (to - from) * tracks.length_ms;
    const rough = shownMs / Math.max(2, Math.floor(this.plot / 90));
    const decade = 10 ** Math.floor(Math.log10(rough));
    const step = decade * ([1, 2, 5, 10].find((one) => one * decade >= rough) || 10);
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "top";
    for (let ms = Math.ceil((from * tracks.length_ms) / step) * step; ms <= to * tracks.length_ms * 1.0001; ms += step) {
      const x = this.x((ms / tracks.length_ms) * tracks.parts);
      context.fillStyle = inks.line;
      context.fillRect(x, 0, 1, bottom + 4);
      context.fillStyle = inks.soft;
      context.fillText(ms === 0 ? "0" : time(ms, to * tracks.length_ms), Math.min(x, this.gutter + this.plot - 14), bottom + 7);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Object<string, string>} inks */
  drawBoxes(context, inks) {
    const { tracks } = this;
    /** @type {Map<string, string>} by kind and chunk: those of later chunks are paler, in both themes */
    const fills = new Map();
    const fill = (/** @type {number} */ kind, /** @type {number} */ chunk) => {
      const key = `${kind} ${chunk}`;
      const own = tracks.kinds[kind].colour;
      if (!fills.has(key)) fills.set(key, colour(chunk ? `color-mix(in srgb, ${own} ${100 * Math.max(0.45, 1 - 0.22 * chunk)}%, white)` : own));
      return fills.get(key);
    };
    const right = this.gutter + this.plot;
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let i = 0; i < tracks.row.length; i++) {
      const x = this.x(tracks.start[i]);
      const end = this.x(tracks.end[i]);
      if (end < this.gutter || x > right) continue;
      const [top, height] = TRACKS[tracks.track[i]];
      const y = tracks.row[i] * ROW + top;
      const width = end - x;
      context.fillStyle = fill(tracks.kind[i], tracks.chunk[i]);
      context.fillRect(x, y, width, height);
      if (tracks.track[i] === 0 && width > 3) {
        context.fillStyle = inks.card;
        context.fillRect(end - 0.75, y, 0.75, height);
      }
      if (tracks.track[i] === 0 && tracks.microbatch[i] >= 0 && width > 15 && (tracks.kind[i] < 2 || tracks.kind[i] === WEIGHT)) {
        context.fillStyle = tracks.kind[i] === WEIGHT && !tracks.chunk[i] ? "#fff" : "#10222e";
        context.fillText(String(tracks.microbatch[i]), Math.max(x, this.gutter) / 2 + Math.min(end, right) / 2, y + height / 2 + 0.5);
      }
      if (i === this.chosen) {
        context.strokeStyle = inks.ink;
        context.lineWidth = 2;
        context.strokeRect(x, y, Math.max(2, width), height);
      }
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Object<string, string>} inks */
  drawNames(context, inks) {
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = inks.ink;
    this.tracks.rows.forEach((name, row) => context.fillText(name, this.gutter - 8, row * ROW + 12, this.gutter - 10));
  }

  /** Outlines a box and shows its text. @param {number} i −1 for none */
  choose(i) {
    if (i === this.chosen) return;
    this.chosen = i;
    this.reading.textContent = i < 0 ? "\u00a0" : this.words(i);
    this.draw();
  }

  /** @param {number} i @returns {string} */
  words(i) {
    const { tracks } = this;
    const ms = (part) => (part / tracks.parts) * tracks.length_ms;
    const kind = tracks.kinds[tracks.kind[i]];
    const parts = [tracks.rows[tracks.row[i]], tracks.communications[tracks.communication[i]] || kind.name];
    if (tracks.stage[i] >= 0) parts.push(`stage ${tracks.stage[i]}`);
    if (tracks.microbatch[i] >= 0) parts.push(`microbatch ${tracks.microbatch[i]}`);
    const several = tracks.number[i] > 1 ? `${tracks.number[i]} tasks, ` : "";
    return `${parts.join(", ")}: ${several}${time(ms(tracks.end[i] - tracks.start[i]))}, starting at ${time(ms(tracks.start[i]))} (${kind.help})`;
  }

  /** @param {PointerEvent} event @returns {number} the box below the pointer */
  under(event) {
    const { tracks } = this;
    if (!tracks) return -1;
    const row = Math.floor(event.offsetY / ROW);
    let found = -1;
    for (let i = 0; i < tracks.row.length; i++) {
      if (tracks.row[i] !== row) continue;
      const [top, height] = TRACKS[tracks.track[i]];
      const within = event.offsetY >= row * ROW + top - 1 && event.offsetY <= row * ROW + top + height + 1;
      if (within && this.x(tracks.start[i]) - 1 <= event.offsetX && event.offsetX <= this.x(tracks.end[i]) + 1) found = i;
    }
    return found;
  }

  /** @param {PointerEvent} event */
  grab(event) {
    this.dragged = event.offsetX;
    this.canvas.classList.add("dragging");
    this.canvas.setPointerCapture(event.pointerId);
    this.choose(this.under(event));
  }

  /** @param {PointerEvent} event */
  move(event) {
    if (this.dragged === null) {
      this.choose(this.under(event));
      return;
    }
    const width = this.to - this.from;
    const by = ((event.offsetX - this.dragged) / this.plot) * width;
    this.dragged = event.offsetX;
    this.look(this.from - by, width);
  }

  drop() {
    this.dragged = null;
    this.canvas.classList.remove("dragging");
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.zoom(event.deltaY < 0 ? 1.25 : 0.8, Math.min(1, Math.max(0, (event.offsetX - this.gutter) / this.plot)));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const keys = {
      "+": () => this.zoom(1.5),
      "=": () => this.zoom(1.5),
      "-": () => this.zoom(1 / 1.5),
      0: () => this.whole(),
      ArrowRight: () => this.step(1),
      ArrowLeft: () => this.step(-1),
      ArrowDown: () => this.rowStep(1),
      ArrowUp: () => this.rowStep(-1),
    };
    if (!this.tracks || event.ctrlKey || event.metaKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  }

  /** Selects the next or previous box of the row in time order. @param {number} by 1 or −1 */
  step(by) {
    const { tracks } = this;
    const row = this.chosen < 0 ? 0 : tracks.row[this.chosen];
    const order = [...tracks.row.keys()].filter((i) => tracks.row[i] === row).sort((a, b) => tracks.start[a] - tracks.start[b] || a - b);
    const place = this.chosen < 0 ? (by > 0 ? -1 : order.length) : order.indexOf(this.chosen);
    this.reach(order[Math.min(order.length - 1, Math.max(0, place + by))]);
  }

  /** Selects the box of the next or previous row that starts nearest in time. @param {number} by 1 or −1 */
  rowStep(by) {
    const { tracks } = this;
    if (this.chosen < 0) return this.step(1);
    const row = Math.min(tracks.rows.length - 1, Math.max(0, tracks.row[this.chosen] + by));
    const when = tracks.start[this.chosen];
    let nearest = this.chosen;
    let least = Infinity;
    for (let i = 0; i < tracks.row.length; i++) {
      const away = Math.abs(tracks.start[i] - when) + (tracks.track[i] ? 0.5 : 0);
      if (tracks.row[i] === row && away < least) [least, nearest] = [away, i];
    }
    return this.reach(nearest);
  }

  /** Selects a box and scrolls it into view. @param {number} i */
  reach(i) {
    const width = this.to - this.from;
    const begin = this.tracks.start[i] / this.tracks.parts;
    const end = this.tracks.end[i] / this.tracks.parts;
    if (begin < this.from || end > this.to) this.look((begin + end) / 2 - width / 2, width);
    this.choose(i);
  }
}
