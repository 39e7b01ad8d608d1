// Reads the stream of a run to its end, or a thread for as long as it is shown; a broken connection is taken up again
// behind the last event that arrived.

import * as api from "./api.js";

const RETRIES = 5;

/** What is being read: {run, seq, abort}; `run` is null until it has an address. */
export function reading() {
  return { run: null, seq: 0, abort: new AbortController() };
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

/**
 * Follows a thread until the signal says stop; a thread that is not there (any more) is an error.
 *
 * @param open gives the frames behind a cursor
 * @param cursor gives the place that was reached
 * @param begun told that a stream begins
 * @param take told every event with its cursor, null where it has none
 */
export async function watch(signal, { open, cursor, begun, take }) {
  for (let tries = 0; !signal.aborted; tries += 1) {
    try {
      const frames = await open(cursor(), signal);
      begun();
      for await (const { id, event } of frames) {
        if (signal.aborted) return;
        tries = 0;
        take(id, event);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.status >= 400 && error.status < 500) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, Math.min(300 * 2 ** tries, 10_000)));
  }
}
