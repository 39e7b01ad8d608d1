// Server-sent events over fetch. Yields {id, data} for each event; comments and unknown fields are skipped.

export async function* events(response) {
  if (!response.body) return; // 204: there is nothing behind the cursor
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const frames = rest.split(/\r\n\r\n|\n\n|\r\r/);
      rest = frames.pop();
      for (const frame of frames) {
        const event = parse(frame);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export function parse(frame) {
  let id = null;
  const data = [];
  for (const line of frame.split(/\r\n|\n|\r/)) {
    const colon = line.indexOf(":");
    if (colon === 0) continue;
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") data.push(value);
    else if (name === "id") id = value;
  }
  return data.length ? { id, data: data.join("\n") } : null;
}
