// Requests with the token, and the stream of samples. EventSource sends no headers, so the stream is read by fetch.

const KEY = "partita-token";
/** Samples come every second: after so long without one, the stream is taken for dead. */
const SILENCE_MS = 15_000;
const WAIT_MAX_MS = 15_000;

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

export class Refused extends Error {
  constructor(problem, status) {
    super(problem.detail ?? `the daemon answered ${status}`);
    this.status = status;
    this.field = problem.field ?? null;
  }
}

/** A request; its answer if it is a success, else `Refused` with the daemon's reason. */
async function answer(path, options = {}) {
  const headers = { ...options.headers };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (!response.ok) {
    throw new Refused(await response.json().catch(() => ({})), response.status);
  }
  return response;
}

export const get = async (path) => (await answer(path)).json();

export async function patch(path, body) {
  const headers = { "content-type": "application/json" };
  return (await answer(path, { method: "PATCH", headers, body: JSON.stringify(body) })).json();
}

/** The events of a stream of text: pairs of a kind and the data. */
export class EventParser {
  #rest = "";

  *read(text) {
    this.#rest += text;
    const blocks = this.#rest.split("\n\n");
    this.#rest = blocks.pop();
    for (const block of blocks) {
      let kind = "message";
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) kind = line.slice(6).trim();
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
      if (data.length > 0) yield [kind, data.join("\n")];
    }
  }
}

/**
 * Reads `/v1/live` for ever, and again after it broke. `on.event(kind, value)` gets what comes, `on.state(state, text)`
 * how that goes, and `on.unauthorized(message)` ends it until `follow` is called again.
 */
export async function follow(on) {
  let wait = 1000;
  for (;;) {
    const abort = new AbortController();
    let timer = setTimeout(() => abort.abort(), SILENCE_MS);
    let reason = "the daemon has ended the stream";
    try {
      const response = await answer("/v1/live", { signal: abort.signal });
      const parser = new EventParser();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        clearTimeout(timer);
        timer = setTimeout(() => abort.abort(), SILENCE_MS);
        for (const [kind, data] of parser.read(value)) {
          on.event(kind, JSON.parse(data));
          wait = 1000;
        }
      }
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        clearTimeout(timer);
        on.unauthorized(error.message);
        return;
      }
      reason = error instanceof Refused ? error.message : "the daemon does not answer";
    }
    clearTimeout(timer);
    on.state("bad", `${reason}; next try in ${Math.round(wait / 1000)} s`);
    await new Promise((resume) => setTimeout(resume, wait));
    wait = Math.min(2 * wait, WAIT_MAX_MS);
  }
}
