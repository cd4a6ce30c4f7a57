"use strict";
(() => {
  const NARROW_PX = 520;
  // Longest lines on narrow pages, in letters: of labels next to bars, of titles of axes.
  const LABEL_LETTERS = 18;
  const TITLE_LETTERS = 28;
  const STEP = 0.15;
  const probe = document.body.appendChild(Object.assign(document.createElement("span"), { hidden: true }));
  const figures = [];

  /** The value of a style sheet's colour in the current theme. */
  function colour(name) {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  }

  /** A copy of a specification with each var(--name) replaced by its colour. */
  function themed(value, known) {
    if (typeof value === "string") {
      const match = /^var\(--([a-z]+)\)$/.exec(value);
      return match ? (known[match[1]] ??= colour(match[1])) : value;
    }
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map((one) => themed(one, known));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, themed(one, known)]));
    }
    return value;
  }

  /** Text broken into two lines at most, each cut to a number of letters. */
  function inTwoLines(words, letters) {
    const lines = [""];
    for (const word of words.replaceAll("<br>", " ").split(" ")) {
      const longer = `${lines.at(-1)} ${word}`.trim();
      if (longer.length <= letters || !lines.at(-1)) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    const kept = lines.length > 2 ? [lines[0], lines.slice(1).join(" ")] : lines;
    return kept.map((line) => (line.length > letters ? `${line.slice(0, letters - 1)}…` : line)).join("<br>");
  }

  function axis(given, narrow, titleLetters) {
    const drawn = {
      automargin: true, gridcolor: colour("grid"), linecolor: colour("grey"), zerolinecolor: colour("grid"),
      tickcolor: colour("grey"), ticks: "outside", ticklen: 4, hoverformat: ".4g",
      separatethousands: true, ...given,
      title: { ...given.title, font: { size: 13 }, standoff: 12 },
    };
    if (narrow && given.ticktext) drawn.ticktext = given.ticktext.map((words) => inTwoLines(words, LABEL_LETTERS));
    if (narrow && given.title) drawn.title.text = inTwoLines(given.title.text, titleLetters);
    return drawn;
  }

  class Figure {
    constructor(element) {
      this.element = element;
      this.canvas = element.querySelector(".canvas");
      this.spec = JSON.parse(element.querySelector("script").textContent);
      for (const view of this.spec.views) {
        view.data = view.data.map(([look, own]) => ({ ...this.spec.looks[look], ...own }));
        view.layout = this.spec.layouts[view.layout];
      }
      this.view = 0;
      this.off = new Set();
      this.drawn = false;
      this.choose();
      for (const button of element.querySelectorAll(".legend button")) {
        button.addEventListener("click", () => this.toggle(button));
      }
      for (const button of element.querySelectorAll(".tools button")) {
        button.addEventListener("click", () => this.act(button.dataset.act));
      }
      this.canvas.addEventListener("keydown", (event) => this.key(event));
      const numbers = element.querySelector(".numbers");
      if (numbers) numbers.addEventListener("toggle", () => this.list(numbers));
    }

    /** Adds a drop-down list for each property in which the views differ. */
    choose() {
      const place = this.element.querySelector(".controls");
      this.selects = this.spec.choosers.map(([name, options], i) => {
        const label = place.appendChild(document.createElement("label"));
        label.append(`${name} `);
        const select = label.appendChild(document.createElement("select"));
        for (const option of options) select.append(new Option(option, option));
        select.value = this.spec.views[0].choices[i];
        select.addEventListener("change", () => {
          for (const figure of figures) figure.follow(name, select.value);
        });
        return select;
      });
    }

    /** Shows the view that has this value of a property, if the figure has one; else it stays. */
    follow(name, value) {
      const at = this.spec.choosers.findIndex(([own]) => own === name);
      if (at < 0) return;
      const wanted = this.spec.views[this.view].choices.map((choice, i) => (i === at ? value : choice));
      const same = (view) => view.choices.filter((choice, i) => choice === wanted[i]).length;
      const fitting = this.spec.views.filter((view) => view.choices[at] === value);
      if (!fitting.length) return;
      this.view = this.spec.views.indexOf(fitting.reduce((best, view) => (same(view) > same(best) ? view : best)));
      this.selects.forEach((select, i) => { select.value = this.spec.views[this.view].choices[i]; });
      if (this.drawn) this.draw();
      const numbers = this.element.querySelector(".numbers");
      if (numbers) this.list(numbers);
    }

    draw() {
      const view = this.spec.views[this.view], known = {};
      const narrow = this.canvas.clientWidth < NARROW_PX;
      const names = new Set(view.data.map((trace) => trace.meta));
      const data = view.data.map((trace) => {
        const own = themed(trace, known);
        return { ...own, visible: !this.off.has(trace.meta) };
      });
      for (const button of this.element.querySelectorAll(".legend button")) button.hidden = !names.has(button.dataset.name);
      const finding = this.element.querySelector(".finding");
      if (finding) finding.textContent = view.finding;
      const touch = matchMedia("(pointer: coarse)").matches;
      const layout = {
        xaxis: axis(view.layout.xaxis, narrow, TITLE_LETTERS), yaxis: axis(view.layout.yaxis, narrow, Infinity),
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", barmode: "overlay",
        font: { family: getComputedStyle(document.body).fontFamily, size: narrow ? 11 : 13, color: colour("ink") },
        hoverlabel: { bgcolor: colour("card"), bordercolor: colour("grey"), font: { color: colour("ink"), size: 13 }, align: "left" },
        margin: { l: 8, r: 12, t: 8, b: 8 }, hovermode: "closest", showlegend: false,
        dragmode: touch ? false : "zoom", uniformtext: { mode: "hide", minsize: 9 },
      };
      Plotly.react(this.canvas, data, layout, { displayModeBar: false, responsive: true, doubleClick: "reset" });
      this.drawn = true;
      this.element.dataset.drawn = "yes";
    }

    toggle(button) {
      const shown = button.getAttribute("aria-pressed") !== "true", name = button.dataset.name;
      button.setAttribute("aria-pressed", String(shown));
      if (shown) this.off.delete(name); else this.off.add(name);
      this.draw();
    }

    key(event) {
      const acts = { "+": "in", "=": "in", "-": "out", "0": "reset", Escape: "reset",
        ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" };
      const act = acts[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.act(act);
    }

    act(act) {
      if (!this.drawn) return;
      const full = this.canvas._fullLayout, change = {};
      const axes = this.spec.along ? ["xaxis"] : ["xaxis", "yaxis"];
      if (act === "reset") return void this.draw();
      for (const name of axes) {
        const [from, to] = full[name].range, width = to - from, share = { in: STEP, out: -STEP / (1 - 2 * STEP) }[act];
        if (share !== undefined) change[`${name}.range`] = [from + share * width, to - share * width];
      }
      const [from, to] = full.xaxis.range, [low, high] = full.yaxis.range;
      const aside = { left: -STEP, right: STEP }[act] ?? 0, up = { up: STEP, down: -STEP }[act] ?? 0;
      if (aside) change["xaxis.range"] = [from + aside * (to - from), to + aside * (to - from)];
      if (up && !this.spec.along) change["yaxis.range"] = [low + up * (high - low), high + up * (high - low)];
      if (Object.keys(change).length) Plotly.relayout(this.canvas, change);
    }

    /** Lists the hover texts of all marks of the view. */
    list(numbers) {
      const place = numbers.querySelector("ul");
      place.replaceChildren();
      if (!numbers.open) return;
      const texts = new Set();
      for (const trace of this.spec.views[this.view].data) {
        for (const text of trace.customdata ?? trace.text ?? []) texts.add(text);
      }
      const plain = new DOMParser();
      for (const text of texts) {
        const item = place.appendChild(document.createElement("li"));
        item.textContent = plain.parseFromString(text.replaceAll("<br>", " · "), "text/html").body.textContent;
      }
    }
  }

  for (const element of document.querySelectorAll("figure.plot")) figures.push(new Figure(element));
  let isFirst = true;
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const figure = figures.find((one) => one.element === entry.target);
      if (entry.isIntersecting && !figure.drawn) {
        near.unobserve(entry.target);
        figure.draw();
      }
    }
    // figures in view are drawn, and all buttons work
    if (isFirst) performance.mark("interactive");
    isFirst = false;
  }, { rootMargin: "300px" });
  for (const figure of figures) near.observe(figure.element);

  const redraw = () => { for (const figure of figures) if (figure.drawn) figure.draw(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { label(); redraw(); });
  const button = document.querySelector(".theme");
  const isDark = () => getComputedStyle(probe).colorScheme.includes("dark")
    && (document.documentElement.dataset.theme === "dark" || matchMedia("(prefers-color-scheme: dark)").matches);
  const label = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
  label();
  button.addEventListener("click", () => {
    const chosen = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    label();
    try { localStorage.setItem("scaleproof-theme", chosen); } catch { /* without storage the choice lasts until the page is closed */ }
    redraw();
  });
})();
