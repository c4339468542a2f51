// The form that changes a tenant's limits.

import { bytes, element, number, write } from "./look.js";
import { patch, Refused } from "./stream.js";

/** The members of the request by the fields of the form. */
const FIELDS = { sm: "sm", mem: "memory_quota_bytes", time: "time", priority: "priority" };

export class Resize {
  #form = document.querySelector("#resize");
  #fields = this.#form.querySelector("fieldset");
  #result = document.querySelector("#resize-result");
  #names = "";

  constructor() {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
  }

  /** Whether the token allows changes. */
  allow(may) {
    this.#fields.disabled = !may;
    if (!may) this.#say("This token only reads. The token of --token-file can resize tenants.", false);
    else if (!this.#result.dataset.sent) this.#say("", false);
  }

  show(tenants) {
    const list = tenants.list();
    const names = JSON.stringify(list.map((known) => known.name));
    if (names === this.#names) return;
    this.#names = names;
    const select = this.#form.elements.tenant;
    const before = select.value;
    select.replaceChildren(...list.map((known) => element("option", { value: known.name }, known.name)));
    if (list.some((known) => known.name === before)) select.value = before;
  }

  choose(name) {
    this.#form.elements.tenant.value = name;
  }

  async #send() {
    const { elements } = this.#form;
    const change = {};
    for (const field of Object.keys(FIELDS)) {
      elements[field].removeAttribute("aria-invalid");
      const text = elements[field].value.trim();
      if (text !== "") change[field] = text;
    }
    if (elements.compact.checked) change.compact = true;
    const name = elements.tenant.value;
    this.#result.dataset.sent = "yes";
    if (Object.keys(change).length === 0) {
      this.#say("Nothing to change: fill in at least one field.", true);
      elements.sm.focus();
      return;
    }
    const button = this.#form.querySelector("button");
    button.disabled = true;
    try {
      const limits = await patch(`/v1/tenants/${encodeURIComponent(name)}`, change);
      const texts = limits.map((now) => {
        const quota = now.memory_quota_bytes === null ? "" : `, ${bytes(now.memory_quota_bytes)} of memory`;
        const moved = now.moved.length > 0 ? `; ${now.moved.join(", ")} moved` : "";
        return `${number(now.sms)} SMs on ${now.gpu} (TPCs ${now.tpcs})${quota}${moved}`;
      });
      this.#say(`${name} has ${texts.join("; ")}.`, false);
      for (const field of ["sm", "mem", "time"]) elements[field].value = "";
      elements.priority.value = "";
    } catch (error) {
      this.#say(error instanceof Refused ? error.message : "The daemon does not answer; nothing is known to have changed.", true);
      const wrong = Object.entries(FIELDS).find(([, member]) => error.field === `/${member}`)?.[0];
      if (wrong) {
        elements[wrong].setAttribute("aria-invalid", "true");
        elements[wrong].focus();
      }
    } finally {
      button.disabled = false;
    }
  }

  #say(text, isBad) {
    write(this.#result, text);
    this.#result.classList.toggle("bad", isBad);
  }
}
