// The page: from the token to samples, and from a sample to what is shown.

import { Charts } from "./charts.js";
import { Events } from "./events.js";
import { write } from "./look.js";
import { Cards } from "./map.js";
import { Resize } from "./resize.js";
import { follow, token } from "./stream.js";
import { Table, Tenants } from "./tenants.js";

const at = (selector) => document.querySelector(selector);
const tenants = new Tenants();
let board = null;
let newest = null;
let isDue = false;

/** The parts of the page that need samples. */
function makeBoard() {
  const point = (id) => {
    board.cards.point(id);
    board.table.point(id);
  };
  const choose = (id) => {
    if (!tenants.chosen.delete(id)) {
      tenants.chosen.add(id);
      board.resize.choose(tenants.all.get(id).name);
    }
    show();
  };
  at("#show-all").addEventListener("click", () => {
    tenants.chosen.clear();
    show();
  });
  return {
    cards: new Cards({ point }),
    table: new Table({ point, choose }),
    charts: new Charts(),
    events: new Events(),
    resize: new Resize(),
  };
}

function show() {
  isDue = false;
  if (!newest) return;
  const start = performance.now();
  board.cards.show(newest.gpus, tenants);
  board.table.show(tenants);
  board.resize.show(tenants);
  board.charts.show(tenants);
  document.title = `Partita · ${tenants.all.size} ${tenants.all.size === 1 ? "tenant" : "tenants"}`;
  // Only the last few are kept: a page can be open for weeks.
  performance.clearMeasures("partita-update");
  performance.measure("partita-update", { start, detail: { sampled: newest.at_unix_ms, shown: Date.now() } });
}

/** A hidden page keeps its history, and draws when it is seen again. */
function showSoon() {
  if (isDue || document.hidden) return;
  isDue = true;
  requestAnimationFrame(show);
}

function state(kind, text) {
  at("#status").dataset.state = kind;
  write(at("#status"), text);
}

function problem(text) {
  at("#problem").hidden = text === "";
  write(at("#problem"), text);
}

function onEvent(kind, value) {
  if (kind === "caller") {
    at("#sign-in").hidden = true;
    at("#board").hidden = false;
    at("#sign-out").hidden = token.get() === null;
    board ??= makeBoard();
    board.resize.allow(value.may_change);
    write(at("#caller"), `as ${value.user}${value.may_change ? "" : ", read only"} · partitad ${value.version}`);
    state("live", "live");
  } else if (kind === "sample") {
    problem("");
    state("live", "live");
    newest = value;
    tenants.add(value);
    for (const change of tenants.changes) board.events.add(value.at_unix_ms, "tenant", change);
    board.events.upTo(value.newest_event);
    showSoon();
  } else if (kind === "problem") {
    problem(value.detail);
  }
}

function askForToken(message) {
  const had = token.get() !== null;
  token.forget();
  at("#board").hidden = true;
  at("#sign-in").hidden = false;
  at("#sign-out").hidden = true;
  state("waiting", "needs a token");
  write(at("#caller"), "");
  write(at("#sign-in-problem"), had ? `The daemon does not take this token: ${message}` : "");
  at("#token").value = "";
  at("#token").focus();
}

const begin = () => follow({ event: onEvent, state, unauthorized: askForToken });

at("#sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("#token").value.trim();
  // A header takes nothing else.
  if (!/^[\x21-\x7e]+$/.test(text)) {
    write(at("#sign-in-problem"), "A token has printable characters and no space; copy the whole line of its file.");
    return;
  }
  token.set(text);
  begin();
});
at("#sign-out").addEventListener("click", () => {
  token.forget();
  location.reload();
});
document.addEventListener("visibilitychange", () => showSoon());
begin();
