// A card for each GPU: its numbers, and the map of its TPCs by tenant.

import { bar, bytes, colourClass, element, percent, write } from "./look.js";
import { get } from "./stream.js";

/** The TPCs of ranges such as `0-3,8`. */
export function tpcsOf(ranges) {
  const tpcs = [];
  for (const range of (ranges ?? "").split(",")) {
    const [first, last = first] = range.split("-").map(Number);
    if (range !== "" && Number.isInteger(first) && Number.isInteger(last)) {
      for (let tpc = first; tpc <= last; tpc += 1) tpcs.push(tpc);
    }
  }
  return tpcs;
}

class Card {
  #cells = new Map();
  #map = element("div", { class: "map" });
  #key = element("ul", { class: "key", "aria-label": "Tenants in the map" });
  #values = {};
  #bars = {};
  #shown = "";

  constructor(gpu, on) {
    this.gpu = gpu;
    this.on = on;
    const row = (name, label) => {
      this.#values[name] = element("dd");
      this.#bars[name] = bar();
      return element("div", {}, element("dt", {}, label), this.#values[name], this.#bars[name].made);
    };
    this.made = element(
      "article",
      { class: "gpu", "data-gpu": gpu.uuid },
      element("h3", {}, gpu.label),
      element("dl", {}, row("sms", "SMs held"), row("memory", "Memory in use"), row("busy", "Busy")),
      this.#map,
      this.#key,
    );
    this.#load();
  }

  /** Where the TPCs lie: it does not change while the GPU is there. */
  async #load() {
    this.#map.replaceChildren(element("p", { class: "note" }, "reading where the TPCs lie"));
    try {
      const chart = await get(`/v1/gpus/${encodeURIComponent(this.gpu.selector)}/topology`);
      this.#draw(chart);
    } catch (error) {
      this.#map.replaceChildren(element("p", { class: "note" }, `No map: ${error.message}`));
    }
  }

  #draw(chart) {
    const cell = (tpc, gpc) => {
      if (tpc === null) return element("span", { class: "tpc fused", title: "no TPC here" });
      const made = element("span", { class: "tpc" });
      this.#cells.set(tpc, { made, gpc, text: null });
      return made;
    };
    const groups = chart.gpcs.map((gpc, at) => {
      const label = gpc.gpc === null ? `Group ${at}` : `GPC ${gpc.gpc}`;
      const rows = gpc.cpcs.flatMap((cpc) => {
        const { places } = cpc;
        // Without known CPCs all TPCs of a GPC are one group: rows of three as on the chip.
        return Array.from({ length: Math.ceil(places.length / 3) }, (_, row) => places.slice(3 * row, 3 * row + 3));
      });
      return element(
        "div",
        { class: "gpc" },
        element("h4", {}, label),
        ...rows.map((row) => element("div", { class: "cpc" }, ...row.map((tpc) => cell(tpc, label)))),
      );
    });
    this.#map.replaceChildren(...groups);
    this.#map.setAttribute("role", "img");
    this.#shown = "";
    if (this.tenants) this.show(this.gpu, this.tenants);
  }

  show(gpu, tenants) {
    this.gpu = gpu;
    this.tenants = tenants;
    const held = gpu.sms === null || gpu.free_sms === null ? null : gpu.sms - gpu.free_sms;
    write(this.#values.sms, held === null ? "unknown" : `${held} of ${gpu.sms}`);
    this.#bars.sms.set(held, gpu.sms);
    write(this.#values.memory, `${bytes(gpu.memory_used_bytes)} of ${bytes(gpu.memory_total_bytes)}`);
    this.#bars.memory.set(gpu.memory_used_bytes, gpu.memory_total_bytes);
    write(this.#values.busy, gpu.utilization_percent === null ? "unknown" : percent(gpu.utilization_percent));
    this.#bars.busy.set(gpu.utilization_percent, 100);

    const parts = tenants.list().flatMap((known) =>
      known.tenant.parts.filter((part) => part.gpu_uuid === gpu.uuid).map((part) => ({ known, part })),
    );
    const shown = JSON.stringify(parts.map(({ known, part }) => [known.number, known.name, part.tpcs]));
    if (shown === this.#shown) return;
    this.#shown = shown;
    const holders = new Map();
    for (const { known, part } of parts) {
      for (const tpc of tpcsOf(part.tpcs)) holders.set(tpc, [...(holders.get(tpc) ?? []), known]);
    }
    for (const [tpc, cell] of this.#cells) {
      const of = holders.get(tpc) ?? [];
      cell.ids = of.map((known) => known.id);
      cell.made.className = `tpc ${of.length === 1 ? colourClass(of[0].number) : of.length > 1 ? "many" : ""}`;
      write(cell.made, of.length === 1 ? String(of[0].number) : of.length > 1 ? `×${of.length}` : "");
      const who = of.length > 0 ? of.map((known) => known.name).join(", ") : "free";
      cell.made.title = `TPC ${tpc}, ${cell.gpc}: ${who}`;
    }
    const texts = parts.map(({ known, part }) => `${known.name}: ${part.sms ?? "?"} SMs`);
    this.#map.setAttribute("aria-label", `TPCs of ${gpu.label} by tenant. ${texts.join("; ") || "All are free"}.`);
    this.#key.replaceChildren(
      ...parts.map(({ known }) => {
        const swatch = element("span", { class: `swatch ${colourClass(known.number)}` }, String(known.number));
        const item = element("li", {}, swatch, ` ${known.name}`);
        item.addEventListener("pointerenter", () => this.on.point(known.id));
        item.addEventListener("pointerleave", () => this.on.point(null));
        return item;
      }),
    );
  }

  point(id) {
    for (const cell of this.#cells.values()) {
      cell.made.classList.toggle("dim", id !== null && !(cell.ids ?? []).includes(id));
    }
  }
}

/** The cards of all GPUs. */
export class Cards {
  #cards = new Map();
  #on;

  constructor(on) {
    this.#on = on;
  }

  show(gpus, tenants) {
    for (const [uuid, card] of this.#cards) {
      if (!gpus.some((gpu) => gpu.uuid === uuid)) {
        card.made.remove();
        this.#cards.delete(uuid);
      }
    }
    for (const gpu of gpus) {
      let card = this.#cards.get(gpu.uuid);
      if (!card) {
        card = new Card(gpu, this.#on);
        this.#cards.set(gpu.uuid, card);
        document.querySelector("#gpus").append(card.made);
      }
      card.show(gpu, tenants);
    }
  }

  point(id) {
    for (const card of this.#cards.values()) card.point(id);
  }
}
