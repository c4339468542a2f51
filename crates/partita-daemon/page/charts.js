// Charts of the last five minutes: a line for each tenant.

/* global uPlot */
import { colour, dash, element, number, percent, bytes, strokeOf, write } from "./look.js";

const HEIGHT = 170;
const GIB = 2 ** 30;

const CHARTS = [
  { metric: "sms", title: "SMs", show: number, axis: number },
  { metric: "memory", title: "Memory", show: bytes, axis: (value) => number(value / GIB) + " G" },
  { metric: "launches", title: "Launches per second", show: number, axis: number },
  { metric: "time", title: "GPU time used", show: percent, axis: percent, none: "no tenant here has a share of time" },
];

class Chart {
  constructor({ metric, title, show, axis, none }) {
    Object.assign(this, { metric, show, axis });
    this.output = element("output");
    this.plotted = element("div", { class: "plot", "aria-hidden": "true" });
    this.none = element("p", { class: "note", hidden: true }, none ?? "nothing to show yet");
    const label = `${title} of each tenant in the last five minutes; the table has the present numbers`;
    this.made = element(
      "figure",
      { "data-chart": metric, "aria-label": label },
      element("figcaption", {}, element("h3", {}, title), this.output),
      this.plotted,
      this.none,
    );
  }

  /** A new plot for these tenants. */
  build(list) {
    this.plot?.destroy();
    this.list = list;
    const line = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: colour("--muted"), grid: line, ticks: line, font: "12px system-ui, sans-serif" };
    const series = list.map((known) => ({
      label: known.name,
      stroke: strokeOf(known.number),
      dash: dash(known.number),
      width: 1.6,
      points: { show: false },
    }));
    const values = (plot, ticks) => ticks.map((tick) => this.axis(tick));
    this.plot = new uPlot(
      {
        width: Math.max(200, this.plotted.clientWidth),
        height: HEIGHT,
        legend: { show: false },
        cursor: { sync: { key: "partita" }, focus: { prox: 24 }, drag: { x: false, y: false } },
        focus: { alpha: 0.25 },
        scales: { y: { range: (plot, least, most) => [0, most > 0 ? most * 1.08 : 1] } },
        axes: [{ ...axis, values: "{HH}:{mm}:{ss}", space: 80 }, { ...axis, values, size: 58 }],
        series: [{}, ...series],
        hooks: { setSeries: [(plot, at) => this.#read(at)], setCursor: [() => this.#read(this.focused)] },
      },
      [[], ...list.map(() => [])],
      this.plotted,
    );
  }

  /** What the line next to the pointer says. */
  #read(at) {
    this.focused = at;
    const known = at ? this.list[at - 1] : null;
    const index = this.plot?.cursor.idx;
    const value = known && index !== null && index !== undefined ? known.series[this.metric][index] : null;
    write(this.output, known ? `${known.name}: ${this.show(value)}` : "");
  }

  set(times) {
    const data = this.list.map((known) => known.series[this.metric]);
    const isEmpty = !data.some((line) => line.some((value) => value !== null));
    this.plotted.hidden = isEmpty;
    this.none.hidden = !isEmpty;
    if (isEmpty) return;
    if (this.plot.width !== this.plotted.clientWidth && this.plotted.clientWidth > 0) this.fit();
    this.plot.setData([times, ...data]);
  }

  fit() {
    this.plot?.setSize({ width: Math.max(200, this.plotted.clientWidth), height: HEIGHT });
  }
}

export class Charts {
  #charts = CHARTS.map((chart) => new Chart(chart));
  #shown = null;

  constructor() {
    document.querySelector("#charts").replaceChildren(...this.#charts.map((chart) => chart.made));
    new ResizeObserver(() => this.#charts.forEach((chart) => chart.fit())).observe(document.querySelector("#charts"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.#shown = null;
    });
  }

  show(tenants) {
    const list = tenants.charted();
    const shown = JSON.stringify(list.map((known) => [known.id, known.number]));
    if (shown !== this.#shown) {
      this.#shown = shown;
      this.#charts.forEach((chart) => chart.build(list));
      const names = list.map((known) => known.name).join(", ");
      write(document.querySelector("#charts-of"), tenants.chosen.size > 0 ? `of ${names}` : "");
    }
    this.#charts.forEach((chart) => chart.set(tenants.times));
  }
}
