// What the template says about the site and its visitor.
const { runtime, agents, runs, user, csrf } = document.body.dataset;

export const RUNTIME_URL = runtime;
export const AGENTS_URL = agents;
export const RUNS_URL = runs;
export const USER = user;
export const HEADERS = { "X-CSRFToken": csrf };
