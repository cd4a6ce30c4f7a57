// Charts as SVG: throughput over GPUs, and over bandwidth. They are drawn anew when their width or data change.

const NAMESPACE = "http://www.w3.org/2000/svg";
const MARGIN = { left: 54, right: 18, top: 28, bottom: 41 };
const HEIGHT = 268;
// of a letter of a label, on average, and between two labels; pixels
const LETTER = 7.2;
const GAP = 6;

/** @param {string} tag @param {Object<string, string | number>} [attributes] @param {...(Node|string)} children @returns {SVGElement} */
function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** @param {number} value @returns {[number, string]} size and prefix of a number's unit; thousands have one from ten thousand on */
function shortUnit(value) {
  return value >= 999.5e6 ? [1e9, "G"] : value >= 999.5e3 ? [1e6, "M"] : value >= 9995 ? [1e3, "k"] : [1, ""];
}

/** @param {number} value @returns {string} three significant digits, as format_short of units.py writes them: '1,234', '12.3k' */
export function short(value) {
  const [size, prefix] = shortUnit(value);
  const number = value / size;
  const digits = number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2;
  const text = number.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return number >= 0.9995 ? `${text}${prefix}` : String(Number(number.toPrecision(3)));
}

/** @param {number} value @returns {string} the label of a tick, in the unit of short numbers: '1,500', '20k' */
function tickText(value) {
  const [size, prefix] = shortUnit(value);
  return `${(value / size).toLocaleString("en", { maximumSignificantDigits: 3 })}${prefix}`;
}

/** The labels that do not overlap earlier ones. @param {[number, string][]} labels middles in pixels, and texts, the most important
 * first @returns {[number, string][]} */
function separate(labels) {
  const kept = /** @type {[number, string][]} */ ([]);
  for (const [place, text] of labels) {
    const isFree = kept.every(([other, words]) => Math.abs(place - other) >= ((text.length + words.length) / 2) * LETTER + GAP);
    if (isFree) kept.push([place, text]);
  }
  return kept;
}

/** A chart that follows its frame's width. */
class Chart {
  /** @param {HTMLElement} frame */
  constructor(frame) {
    this.frame = frame;
    this.data = null;
    new ResizeObserver(() => this.redraw()).observe(frame);
  }

  /** @param {any} data */
  show(data) {
    this.data = data;
    this.drawn = 0;
    this.redraw();
  }

  redraw() {
    const width = this.frame.clientWidth;
    if (!this.data || !width || width === this.drawn) return;
    this.drawn = width;
    this.width = width;
    const svg = draw("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "group", "aria-label": this.words() });
    this.paint(svg);
    this.frame.replaceChildren(svg);
  }

  /** @param {number} share @returns {number} pixels from the left */
  x(share) {
    return MARGIN.left + share * (this.width - MARGIN.left - MARGIN.right);
  }

  /** @param {number} share @returns {number} pixels from the top */
  y(share) {
    return HEIGHT - MARGIN.bottom - share * (HEIGHT - MARGIN.bottom - MARGIN.top);
  }

  /** @param {SVGElement} svg @param {[number, string][]} xs shares and texts, the most important first
   * @param {[number, string][]} ys @param {string} across title of the horizontal axis @param {string} up of the vertical one */
  axes(svg, xs, ys, across, up) {
    for (const [share, text] of ys) {
      svg.append(draw("line", { class: "grid", x1: this.x(0), x2: this.x(1), y1: this.y(share), y2: this.y(share) }));
      svg.append(draw("text", { class: "tick", x: MARGIN.left - 7, y: this.y(share) + 4, "text-anchor": "end" }, text));
    }
    for (const [place, text] of separate(xs.map(([share, text]) => [this.x(share), text]))) {
      svg.append(draw("text", { class: "tick", x: place, y: HEIGHT - MARGIN.bottom + 19, "text-anchor": "middle" }, text));
    }
    svg.append(draw("text", { class: "tick", x: this.x(0.5), y: HEIGHT - 4, "text-anchor": "middle" }, across));
    svg.append(draw("text", { class: "tick", x: 0, y: 12 }, up));
  }
}

/** @param {number[]} values @returns {[number, number]} */
const ends = (values) => [Math.min(...values), Math.max(...values)];

/** Throughput over GPUs on logarithmic scales, with intervals and linear scaling. */
export class ScalingChart extends Chart {
  /** @param {HTMLElement} frame @param {(gpus: number) => void} chosen */
  constructor(frame, chosen) {
    super(frame);
    this.chosen = chosen;
  }

  words() {
    return `Throughput in ${this.data.unit} over GPUs, global batch kept`;
  }

  /** @param {SVGElement} svg */
  paint(svg) {
    const { points, now } = this.data.scaling;
    const unit = this.data.unit;
    const first = points[0];
    const perGpu = Math.max(...points.map((/** @type {any} */ one) => one.rate / one.gpus));
    const log = Math.log2;
    let [low, high] = ends(points.map((/** @type {any} */ one) => log(one.gpus)));
    if (low === high) [low, high] = [low - 1, high + 1];
    const rates = points.flatMap((/** @type {any} */ one) => [one.low ?? one.rate, one.high ?? one.rate]);
    const [least, most] = [Math.floor(log(Math.min(...rates)) * 2) / 2, Math.ceil(log(Math.max(...rates, perGpu * 2 ** high)) * 2) / 2];
    const x = (/** @type {number} */ gpus) => this.x((log(gpus) - low) / (high - low));
    const y = (/** @type {number} */ rate) => this.y((log(rate) - least) / (most - least));
    const byImportance = [...points].sort((a, b) => Number(b.gpus === now) - Number(a.gpus === now));
    const xs = byImportance.map((one) => /** @type {[number, string]} */ ([(log(one.gpus) - low) / (high - low), one.gpus.toLocaleString("en")]));
    this.axes(svg, xs, ticks(least, most), "GPUs (both scales are logarithmic)", unit);
    const [a, b] = [2 ** low, 2 ** high];
    svg.append(draw("line", { class: "linear", x1: x(a), y1: y(perGpu * a), x2: x(b), y2: y(perGpu * b) }));
    const interval = points.filter((/** @type {any} */ one) => one.low);
    const edge = [...interval.map((/** @type {any} */ one) => [one.gpus, one.high]), ...interval.reverse().map((/** @type {any} */ one) => [one.gpus, one.low])];
    if (interval.length === 1) svg.append(draw("line", { class: "whisker", x1: x(edge[0][0]), x2: x(edge[0][0]), y1: y(edge[0][1]), y2: y(edge[1][1]) }));
    if (interval.length > 1) svg.append(draw("polygon", { class: "band", points: edge.map(([gpus, rate]) => `${x(gpus)},${y(rate)}`).join(" ") }));
    svg.append(draw("polyline", { class: "curve", points: points.map((/** @type {any} */ one) => `${x(one.gpus)},${y(one.rate)}`).join(" ") }));
    for (const one of points) {
      const share = one.rate / one.gpus / (first.rate / first.gpus);
      const memory = one.fits === false ? ", out of memory" : "";
      const text = `${one.gpus.toLocaleString("en")} GPUs: ${short(one.rate)} ${unit}, ${(share * 100).toFixed(0)} % per GPU of ${first.gpus}${memory}`;
      const mark = draw("g", { class: `mark${one.fits === false ? " full" : ""}${one.gpus === now ? " now" : ""}`, role: "button", tabindex: 0, "aria-label": text },
        draw("title", {}, text), draw("circle", { class: "target", cx: x(one.gpus), cy: y(one.rate), r: 14 }), draw("circle", { cx: x(one.gpus), cy: y(one.rate), r: one.gpus === now ? 6.5 : 4.5 }));
      mark.addEventListener("click", () => this.chosen(one.gpus));
      mark.addEventListener("keydown", (event) => /** @type {KeyboardEvent} */ (event).key === "Enter" && this.chosen(one.gpus));
      svg.append(mark);
    }
    this.values(svg, byImportance.filter((one) => one.gpus === now || one === points.at(-1)).map((one) => [x(one.gpus), y(one.rate), short(one.rate)]));
  }

  /** Writes values below their points, or above them where that is taken. @param {SVGElement} svg
   * @param {[number, number, string][]} values places in pixels, and texts */
  values(svg, values) {
    /** @type {[number, number, number][]} left, right and baseline of those that are written */
    const taken = [];
    for (const [x, y, text] of values) {
      const width = text.length * LETTER;
      const left = Math.min(Math.max(x - width / 2, this.x(0) + 2), this.x(1) + MARGIN.right - width);
      const isFree = (/** @type {number} */ at) => at < this.y(0) && taken.every(([from, to, other]) => left > to + GAP || left + width + GAP < from || Math.abs(at - other) > 14);
      const at = [y + 22, y - 12].find(isFree);
      if (at === undefined) continue;
      taken.push([left, left + width, at]);
      svg.append(draw("text", { class: "value", x: left, y: at }, text));
    }
  }
}

/** @param {number} least @param {number} most powers of two @returns {[number, string][]} round multiples of powers of ten */
function ticks(least, most) {
  const found = /** @type {[number, string][]} */ ([]);
  const leading = most - least > 7 ? [1] : most - least > 2.5 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
  for (let power = Math.floor(least * Math.log10(2)); power <= Math.ceil(most * Math.log10(2)); power++) {
    for (const digit of leading) {
      const value = digit * 10 ** power;
      const share = (Math.log2(value) - least) / (most - least);
      if (share >= 0 && share <= 1) found.push([share, tickText(value)]);
    }
  }
  return found;
}

/** Change of throughput over multiples of a link's bandwidth. */
export class BandwidthChart extends Chart {
  words() {
    return "Change of throughput with the bandwidth of links";
  }

  /** @param {SVGElement} svg */
  paint(svg) {
    const { links } = this.data;
    const change = (/** @type {any} */ link, /** @type {any} */ one) => 100 * (one.rate / link.points.find((/** @type {any} */ p) => p.factor === 1).rate - 1);
    const all = links.flatMap((/** @type {any} */ link) => link.points.map((/** @type {any} */ one) => change(link, one)));
    const step = [2, 5, 10, 20, 25, 50, 100, 200, 500].find((one) => (Math.max(...all, 1) - Math.min(...all, -1)) / one <= 5) || 1000;
    const [least, most] = [Math.floor(Math.min(...all, -step / 2) / step) * step, Math.ceil(Math.max(...all, step / 2) / step) * step];
    const x = (/** @type {number} */ factor) => this.x((Math.log2(factor) + 2) / 4);
    const y = (/** @type {number} */ percent) => this.y((percent - least) / (most - least));
    const ys = /** @type {[number, string][]} */ ([]);
    for (let at = least; at <= most; at += step) ys.push([(at - least) / (most - least), `${at > 0 ? "+" : at < 0 ? "−" : ""}${Math.abs(at)} %`]);
    this.axes(svg, [[0, "×0.25"], [0.25, "×0.5"], [0.5, "×1"], [0.75, "×2"], [1, "×4"]], ys, "bandwidth (×1: as in the scenario)", "change of throughput");
    links.forEach((/** @type {any} */ link, /** @type {number} */ i) => {
      const kind = i ? "second" : "first";
      svg.append(draw("polyline", { class: `curve ${kind}`, points: link.points.map((/** @type {any} */ one) => `${x(one.factor)},${y(change(link, one))}`).join(" ") }));
      for (const one of link.points) {
        const text = `${link.name}, ${one.bandwidth}: ${change(link, one) > 0 ? "+" : ""}${change(link, one).toFixed(1)} %`;
        const [cx, cy] = [x(one.factor), y(change(link, one))];
        const shape = i ? draw("rect", { x: cx - 4, y: cy - 4, width: 8, height: 8 }) : draw("circle", { cx, cy, r: 4.5 });
        svg.append(draw("g", { class: `mark ${kind}` }, draw("title", {}, text), shape));
      }
    });
  }
}
