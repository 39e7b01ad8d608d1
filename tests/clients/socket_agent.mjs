// An official AbstractAgent over the WebSocket: all of it that a site would write itself.
import { Observable } from "rxjs";
import WebSocket from "ws";
import { AgUiSocket } from "../../agui_django/static/agui_django/websocket.js";

// options: those of AgUiSocket, for every agent of the class. `opened` counts its connections.
export function socketAgent(AbstractAgent, options) {
  return class SocketAgent extends AbstractAgent {
    static opened = 0;

    constructor({ url, headers, ...config }) {
      super(config);
      class Counted extends WebSocket {
        constructor(...parts) {
          super(...parts);
          SocketAgent.opened += 1;
        }
      }
      this.socket = new AgUiSocket(url, { WebSocket: Counted, ...options });
    }

    run(input) {
      return new Observable((subscriber) => {
        const events = this.socket.run(input);
        (async () => {
          for await (const event of events) subscriber.next(event);
        })().then(
          () => subscriber.complete(),
          (error) => subscriber.error(error),
        );
      });
    }

    abortRun() {
      this.socket.cancel();
    }
  };
}
