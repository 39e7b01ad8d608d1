// Reads the stream of a run to its end; a broken connection is taken up again behind the last event that arrived.

import * as api from "./api.js";

const RETRIES = 5;

/** What is being read: {run, seq, abort, quiet}; `run` is null until it has an address. Quiet ones only restate. */
export function reading({ from = 0, quiet = false } = {}) {
  return { run: null, seq: from, abort: new AbortController(), quiet };
}

/**
 * @param mine what `reading` made
 * @param open gives {run, frames}
 * @param opened told the run's address, once
 * @param take told every event
 * @param ended whether the run has its terminal event
 */
export async function read(mine, { open, opened, take, ended }) {
  const { signal } = mine.abort;
  try {
    let { run, frames } = await open(signal);
    mine.run = run;
    if (run) opened(run);
    for (let tries = 0; ; ) {
      try {
        for await (const { seq, event } of frames) {
          if (signal.aborted) return;
          tries = 0;
          if (seq !== null) mine.seq = seq;
          take(seq, event);
        }
      } catch (error) {
        if (signal.aborted || !run) throw error;
      }
      if (ended() || !run || signal.aborted) return;
      if ((tries += 1) > RETRIES) throw new api.ApiError(0, { message: "The connection broke; reload to go on." });
      await new Promise((resolve) => setTimeout(resolve, 300 * 2 ** tries));
      ({ frames } = await api.follow(run, mine.seq, signal).catch(() => ({ frames: [] })));
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}
