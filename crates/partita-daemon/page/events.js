// The events of the daemon, and what changed while this page was open; the newest first.

import { element, timeOfDay } from "./look.js";
import { get } from "./stream.js";

const SHOWN_MAX = 200;
const FIRST = 50;

export class Events {
  #list = document.querySelector("#events");
  #newest = null;
  #isReading = false;

  constructor() {
    this.#showIfEmpty();
  }

  /** Reads events up to the one of this number, if there are any that are not shown. */
  async upTo(newest) {
    if (this.#isReading || newest === (this.#newest ?? 0)) return;
    this.#isReading = true;
    try {
      const path = this.#newest === null ? `/v1/events?limit=${FIRST}` : `/v1/events?after=${this.#newest}`;
      for (const event of await get(path)) {
        this.#newest = event.id;
        this.add(event.at_unix_ms, event.kind, event.detail, event.change === "began");
      }
    } catch {
      // The next sample tries again.
    } finally {
      this.#isReading = false;
    }
  }

  add(atUnixMs, kind, text, isBad = false) {
    this.#list.querySelector(".note")?.remove();
    this.#list.prepend(
      element(
        "li",
        {},
        element("time", { datetime: new Date(atUnixMs).toISOString() }, timeOfDay(atUnixMs)),
        element("span", { class: isBad ? "kind bad" : "kind" }, kind),
        element("span", { class: "text" }, text),
      ),
    );
    while (this.#list.childElementCount > SHOWN_MAX) this.#list.lastElementChild.remove();
  }

  #showIfEmpty() {
    const text = "No event yet. Tenants that start, end or change are listed here, and processes that escape their limits.";
    this.#list.append(element("li", { class: "note" }, text));
  }
}
