// What a person reads of an error. Refusals of the runtime arrive as "HTTP 409: {json}".
const BUSY = "This conversation is busy: an answer is still being written.";
// What browsers say of a connection that could not be made, or broke off.
const AWAY = /^(failed to fetch|network ?error|load failed|terminated|error in input stream)/i;

export function explain(error) {
  if (AWAY.test(error.message)) return "The connection to the server is lost. What was written is kept: reload the page.";
  const [, status, body] = /^HTTP (\d+)(?:: (.*))?/s.exec(error.message) ?? [];
  if (status === "409") return BUSY;
  try {
    const told = JSON.parse(body);
    return told.message ?? told.error ?? error.message;
  } catch {
    return error.message;
  }
}
