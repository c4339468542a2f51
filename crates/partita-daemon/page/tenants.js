// The tenants: their numbers on the page, their last five minutes, and their table.

import { bar, bytes, colourClass, element, number, percent, write } from "./look.js";

/** Samples that are kept: five minutes. */
const SAMPLES_MAX = 300;
export const METRICS = ["sms", "memory", "launches", "time"];

const key = (tenant) => `${tenant.user}/${tenant.name}`;
const sum = (parts, of) => {
  const known = parts.map(of).filter((value) => value !== null && value !== undefined);
  return known.length > 0 ? known.reduce((all, value) => all + value, 0) : null;
};

export class Tenants {
  /** When the samples were taken, in seconds since 1970. */
  times = [];
  /** By key: the number on the page, the newest state, and for each metric a value a sample. */
  all = new Map();
  chosen = new Set();
  /** What changed between the last two samples, as texts with their tenants. */
  changes = [];
  #numbers = new Set();

  /** Adds a sample; returns whether tenants have come or gone. */
  add(sample) {
    const at = sample.at_unix_ms / 1000;
    const before = this.times.at(-1);
    const seconds = before === undefined ? null : at - before;
    const gap = seconds !== null && (seconds <= 0 || seconds > 5);
    const isFirst = before === undefined;
    this.changes = [];
    this.times.push(at);
    const seen = new Set();
    let differ = false;
    for (const tenant of sample.tenants) {
      const id = key(tenant);
      seen.add(id);
      let known = this.all.get(id);
      const now = {
        sms: sum(tenant.parts, (part) => part.sms),
        memory: sum(tenant.parts, (part) => part.memory_used_bytes),
        quota: sum(tenant.parts, (part) => part.memory_quota_bytes),
        count: sum(tenant.parts, (part) => part.launches),
        time: sum(tenant.parts, (part) => part.time_used_percent),
      };
      if (!known) {
        known = { id, number: this.#number(), name: tenant.name, series: {} };
        for (const metric of METRICS) known.series[metric] = Array(this.times.length - 1).fill(null);
        this.all.set(id, known);
        differ = true;
        if (!isFirst) this.changes.push(`${tenant.name} of ${tenant.user} has started`);
      } else if (known.now.sms !== now.sms || known.now.quota !== now.quota) {
        const sms = known.now.sms === now.sms ? "" : ` ${number(known.now.sms)} → ${number(now.sms)} SMs`;
        const quota = known.now.quota === now.quota ? "" : ` ${bytes(known.now.quota)} → ${bytes(now.quota)} of memory`;
        this.changes.push(`${tenant.name} of ${tenant.user}:${[sms, quota].filter(Boolean).join(",")}`);
      }
      const count = known.now?.count ?? null;
      // Processes that end take their launches along: then there is no rate.
      const hasRate = seconds !== null && !gap && count !== null && now.count !== null && now.count >= count;
      now.launches = hasRate ? (now.count - count) / seconds : null;
      known.tenant = tenant;
      known.now = now;
      for (const metric of METRICS) known.series[metric].push(gap ? null : now[metric]);
    }
    for (const [id, known] of this.all) {
      if (seen.has(id)) continue;
      this.all.delete(id);
      this.chosen.delete(id);
      this.#numbers.delete(known.number);
      this.changes.push(`${known.name} of ${known.tenant.user} has ended`);
      differ = true;
    }
    if (this.times.length > SAMPLES_MAX) {
      this.times.shift();
      for (const known of this.all.values()) for (const metric of METRICS) known.series[metric].shift();
    }
    return differ;
  }

  /** The tenants by their numbers. */
  list() {
    return [...this.all.values()].sort((one, other) => one.number - other.number);
  }

  /** Those that the charts show. */
  charted() {
    const list = this.list();
    return this.chosen.size > 0 ? list.filter((known) => this.chosen.has(known.id)) : list;
  }

  /** The lowest number that no tenant has. */
  #number() {
    let free = 1;
    while (this.#numbers.has(free)) free += 1;
    this.#numbers.add(free);
    return free;
  }
}

/** The table. `on.choose(id)` is called by its names, `on.point(id or null)` as the pointer moves. */
export class Table {
  #body = document.querySelector("#tenants tbody");
  #rows = new Map();
  #on;

  constructor(on) {
    this.#on = on;
  }

  show(tenants) {
    const list = tenants.list();
    for (const [id, row] of this.#rows) {
      if (!tenants.all.has(id)) {
        row.made.remove();
        row.problem.remove();
        this.#rows.delete(id);
      }
    }
    let last = null;
    for (const known of list) {
      const row = this.#rows.get(known.id) ?? this.#row(known);
      this.#fill(row, known, tenants.chosen);
      const place = last ? last.nextElementSibling : this.#body.firstElementChild;
      if (place !== row.made) this.#body.insertBefore(row.made, place);
      if (row.made.nextElementSibling !== row.problem) row.made.after(row.problem);
      last = row.problem;
    }
    document.querySelector("#tenants").hidden = list.length === 0;
    document.querySelector("#no-tenants").hidden = list.length > 0;
    write(document.querySelector("#tenants-count"), list.length > 0 ? String(list.length) : "");
    document.querySelector("#show-all").hidden = tenants.chosen.size === 0;
  }

  point(id) {
    for (const [other, row] of this.#rows) row.made.classList.toggle("dim", id !== null && other !== id);
  }

  #row(known) {
    const cell = (name = "") => element("td", { class: name });
    const name = element("button", { type: "button" }, known.name);
    name.addEventListener("click", () => this.#on.choose(known.id));
    const cells = {
      swatch: element("td", {}, element("span", { class: `swatch ${colourClass(known.number)}` }, String(known.number))),
      name: element("td", {}, name),
      user: cell("wide"),
      gpu: cell(),
      sms: cell("number"),
      tpcs: cell("wide"),
      memory: cell("number"),
      launches: cell("number"),
      time: cell("number"),
      priority: cell("wide"),
      processes: cell("number wide"),
    };
    const memory = bar();
    const memoryText = element("span");
    cells.memory.append(memoryText, memory.made);
    const made = element("tr", { "data-tenant": known.name }, ...Object.values(cells));
    made.addEventListener("pointerenter", () => this.#on.point(known.id));
    made.addEventListener("pointerleave", () => this.#on.point(null));
    const detail = element("td", { class: "problem", colspan: "11" });
    const problem = element("tr", { hidden: true }, detail);
    const row = { made, name, cells, memory, memoryText, problem, detail };
    this.#rows.set(known.id, row);
    return row;
  }

  #fill(row, { tenant, now, id }, chosen) {
    const { parts } = tenant;
    const first = parts[0] ?? {};
    const each = (of) => [...new Set(parts.map(of).filter((text) => text !== null && text !== undefined))].join("; ");
    const isChosen = chosen.has(id);
    row.name.setAttribute("aria-pressed", String(isChosen));
    row.made.classList.toggle("chosen", isChosen);
    write(row.cells.user, tenant.user);
    write(row.cells.gpu, each((part) => part.gpu.replace(/ \(.*\)$/, "")));
    write(row.cells.sms, number(now.sms));
    const tpcs = each((part) => part.tpcs);
    write(row.cells.tpcs, tpcs.length > 24 ? `${tpcs.slice(0, 22)}…` : tpcs || "–");
    row.cells.tpcs.title = tpcs;
    write(row.memoryText, now.quota === null ? bytes(now.memory) : `${bytes(now.memory)} of ${bytes(now.quota)}`);
    row.memory.set(now.memory, now.quota);
    write(row.cells.launches, number(now.launches));
    const share = first.time_share_percent;
    write(row.cells.time, share === null || share === undefined ? "–" : `${percent(now.time)} of ${percent(share)}`);
    write(row.cells.priority, first.priority ?? "–");
    write(row.cells.processes, String(sum(parts, (part) => part.processes.length) ?? 0));
    row.problem.hidden = !tenant.problem;
    write(row.detail, tenant.problem ?? "");
  }
}
