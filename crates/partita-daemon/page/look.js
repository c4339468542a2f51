// How numbers, colours and elements look everywhere on the page.

const COLOURS = 8;
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [4, 2], [12, 5]];

/** An element with attributes and children; texts stay texts, whatever a tenant is called. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Sets a text if it is another one: most do not change from one sample to the next. */
export function write(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export const colourClass = (number) => `c${(number - 1) % COLOURS}`;
export const dash = (number) => DASHES[Math.floor((number - 1) / COLOURS) % DASHES.length];

/** A colour of the style sheet, as it is in the present scheme. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const strokeOf = (number) => colour(`--c${(number - 1) % COLOURS}`);

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  let unit = 0;
  while (count >= 1024 && unit < UNITS.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${count >= 100 || unit === 0 || Number.isInteger(count) ? Math.round(count) : count.toFixed(1)} ${UNITS[unit]}`;
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10_000) return `${(value / 1000).toFixed(value >= 100_000 ? 0 : 1)}k`;
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

export const percent = (value) => (value === null || value === undefined ? "–" : `${number(value)}%`);

export const timeOfDay = (unixMs) =>
  new Date(unixMs).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** A bar that shows a part of a whole; the numbers stand beside it. */
export function bar() {
  const fill = element("i");
  const made = element("div", { class: "bar", "aria-hidden": "true" }, fill);
  return {
    made,
    set(part, whole) {
      made.hidden = !(whole > 0) || part === null || part === undefined;
      if (made.hidden) return;
      fill.style.width = `${Math.min(100, (100 * part) / whole)}%`;
      made.classList.toggle("full", part > 0.95 * whole);
    },
  };
}
