// AG-UI over a WebSocket that comes back by itself: what is yielded is every event once, in order, whatever the network
// does. One instance is one thread. docs/reference/websocket.md is the contract it speaks.

const CURSOR = "agui_django.cursor";
const TERMINAL = new Set(["RUN_FINISHED", "RUN_ERROR"]);
const AWAY = new Set(["draining", "database_away"]);

// Closed for a reason that coming back does not cure: a refusal of the server's, or of the protocol's.
const final = (code) => (code >= 4400 && code < 4500) || [1002, 1003, 1007, 1008, 1009, 1010].includes(code);

export class SocketError extends Error {
  constructor(message, code, reason = "") {
    super(message);
    this.name = "SocketError";
    this.code = code;
    this.reason = reason;
  }
}

export class AgUiSocket {
  #url;
  #options;
  #connection = null;
  #active = false;
  #stopping = false;
  #closed = false;
  #wake = null;

  // The place behind the last event that was yielded, as `follow` takes it; null before the server told one. Between
  // two that it tells, the one before and how many events came behind it: {..., skip}.
  place = null;

  // url: ws(s)://.../agui/ws/<agent>. options: token (a text, or a function that gives one) and scheme for sites that
  // do not use sessions, protocolVersion ("0.x") of an old reader, retries in a row, delay of the first in ms,
  // WebSocket where it is not global.
  constructor(url, options = {}) {
    this.#url = new URL(url, globalThis.location?.href);
    this.#url.protocol = this.#url.protocol.replace("http", "ws");
    this.#url.searchParams.set("cursors", "1");
    if (options.protocolVersion) this.#url.searchParams.set("protocolVersion", options.protocolVersion);
    this.#options = { scheme: "Token", retries: 12, delay: 250, WebSocket: globalThis.WebSocket, ...options };
  }

  // Start a run and yield its events up to the terminal one. Sending the same input again is no second run, so a start
  // that nothing was heard of is simply repeated.
  run(input) {
    return this.#events(JSON.stringify(input), false);
  }

  // Yield what comes behind a place: {run, after} or {threadId, runId, after} up to the terminal event; {threadId}, or
  // {threadId, after}, for as long as somebody iterates (with until: "idle" as long as something runs).
  follow(place) {
    const endless = place.run === undefined && place.runId === undefined;
    return this.#events(JSON.stringify({ type: "follow", ...place, skip: undefined }), endless, place);
  }

  // Stop the run that is being shown; its terminal event is the answer, also when the connection is lost meanwhile.
  cancel() {
    if (!this.#active) return;
    this.#stopping = true;
    this.#connection?.send('{"type":"cancel"}');
  }

  // Leave: iterations end, runs go on or not as the site says.
  close() {
    this.#closed = true;
    this.#wake?.();
    this.#drop();
  }

  async *#events(first, endless, place = {}) {
    if (this.#active) throw new SocketError("This socket carries a stream already.", 4409, "thread_busy");
    this.#active = true;
    this.#stopping = this.#closed = false;
    // A thread without a cursor is restated: nothing in it can be passed over.
    this.place = place.after === undefined ? null : place;
    let frame = first;
    let failures = 0;
    let over = false;
    try {
      while (!this.#closed) {
        const connection = await this.#connect();
        connection.send(frame);
        if (this.#stopping) connection.send('{"type":"cancel"}');
        let held = []; // no place is known behind these yet: if the connection ends here, they come again
        let told = null;
        for (let text; (text = await connection.next()) !== null; ) {
          const event = JSON.parse(text);
          if (event.type === "CUSTOM" && event.name === CURSOR) {
            if (!held.length) continue; // of the stream before this one
            told = event.value;
            frame = JSON.stringify({ type: "follow", ...(endless ? { until: place.until } : {}), ...told });
          } else {
            held.push(event);
            const ends = TERMINAL.has(event.type);
            // A refusal has no time, unlike everything of a run, and is a stream of its own.
            const refused = event.type === "RUN_ERROR" && event.timestamp === undefined;
            if (refused && AWAY.has(event.code)) {
              held = []; // this server goes away, another one will take it; or its database is back soon
              continue;
            }
            if (!ends || (endless && !refused)) continue;
            over = refused || !endless;
            if (refused) this.#drop(); // most are followed by the end of the connection
          }
          failures = 0;
          yield* this.#hand(held, told);
          held = [];
          told = null;
          if (over) return;
        }
        if (this.#closed || connection.code === 1000) return void (over = true);
        this.#connection = null;
        if (final(connection.code)) throw new SocketError("The server refused.", connection.code, connection.reason);
        // Daphne cuts the connection at a frame above 1 MiB, and says no more than a broken network does.
        const retries = frame.length > 1 << 20 ? 1 : this.#options.retries;
        if (++failures > retries) throw new SocketError("The connection is lost.", connection.code);
        await this.#pause(failures);
      }
    } finally {
      this.#active = false;
      if (!over) this.#drop(); // whoever stops reading must not be sent the rest
    }
  }

  // Yield what was held, without what the reader has of it, and keep to where the reader is. Behind a terminal event no
  // place is told.
  *#hand(held, told) {
    const before = this.place;
    const known = before?.skip ?? 0;
    for (const [index, event] of held.entries()) {
      const count = index + 1;
      if (count === held.length && told) this.place = known > count ? { ...told, skip: known - count } : told;
      else if (count > known) this.place = before && { ...before, skip: count };
      if (count > known) yield event;
    }
  }

  async #connect() {
    if (this.#connection?.open) return this.#connection;
    const { token, scheme, WebSocket } = this.#options;
    const secret = typeof token === "function" ? await token() : token;
    const connection = (this.#connection = new Connection(new WebSocket(this.#url.href)));
    if (this.#closed) this.#drop();
    if (secret) connection.send(JSON.stringify({ type: "auth", token: secret, scheme }));
    return connection;
  }

  #drop() {
    this.#connection?.close();
    this.#connection = null;
  }

  // Longer each time, and not all clients of a restarted server at once.
  #pause(failures) {
    const milliseconds = Math.min(this.#options.delay * 2 ** (failures - 1), 10_000) * (0.5 + Math.random() / 2);
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

// One WebSocket: what is sent before it is open waits, what comes is queued for `next`, null at its end.
class Connection {
  #socket;
  #waiting = [];
  #arrived = [];
  #deliver = null;
  code = null;
  reason = "";

  constructor(socket) {
    this.#socket = socket;
    socket.addEventListener("open", () => {
      for (const text of this.#waiting.splice(0)) socket.send(text);
    });
    socket.addEventListener("message", ({ data }) => this.#arrive(data));
    socket.addEventListener("error", () => {}); // the close event follows
    socket.addEventListener("close", ({ code, reason }) => {
      this.code = code;
      this.reason = String(reason);
      this.#arrive(null);
    });
  }

  get open() {
    return this.code === null && this.#socket.readyState <= 1;
  }

  send(text) {
    if (this.#socket.readyState === 0) this.#waiting.push(text);
    else if (this.#socket.readyState === 1) this.#socket.send(text);
  }

  close() {
    this.#socket.close();
    this.code ??= 1000;
    this.#arrive(null);
  }

  next() {
    if (this.#arrived.length) return Promise.resolve(this.#arrived.shift());
    if (this.code !== null) return Promise.resolve(null);
    return new Promise((resolve) => (this.#deliver = resolve));
  }

  #arrive(text) {
    const deliver = this.#deliver;
    this.#deliver = null;
    if (deliver) deliver(text);
    else this.#arrived.push(text);
  }
}
