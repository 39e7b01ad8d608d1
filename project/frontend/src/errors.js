// What a person reads of an error. Refusals of the runtime arrive as "HTTP 409: {json}".
const BUSY = "This conversation is busy: an answer is still being written.";

export function explain(error) {
  const [, status, body] = /^HTTP (\d+)(?:: (.*))?/s.exec(error.message) ?? [];
  if (status === "409") return BUSY;
  try {
    const told = JSON.parse(body);
    return told.message ?? told.error ?? error.message;
  } catch {
    return error.message;
  }
}
