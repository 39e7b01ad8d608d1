"""One script of requests to a runtime of CopilotKit's, and what came of each, in a line that can be compared."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import httpx

from tests.copilotkit.conftest import SUGGEST

Body = dict[str, Any]
Events = list[Body]

TOOL = {"name": "show_haiku", "description": "Show a haiku", "parameters": {"type": "object", "properties": {}}}


def asked(thread: str, *texts: str, **members: Any) -> Body:
    """A run input whose messages are the person's; their ids are the same for both runtimes."""
    messages = [{"id": f"{thread}-{text}", "role": "user", "content": text} for text in texts]
    return {
        "threadId": thread, "runId": f"run-{thread}-{len(texts)}", "tools": [], "context": [], "forwardedProps": {},
        "state": {}, "messages": messages, **members,
    }  # fmt: skip


class Script:
    """The requests in order; ``seen`` is what came of each.

    Args:
        http: a client of the runtime.
        stranger: a client of somebody else.
        opened: lets agent ``kit_gate`` go on, which waits between two words.
    """

    def __init__(self, http: httpx.Client, stranger: httpx.Client, opened: threading.Event) -> None:
        self.http, self.stranger, self.opened = http, stranger, opened
        self.heard = threading.Event()
        self.seen: dict[str, str] = {}

    def play(self) -> dict[str, str]:
        """Ask for everything."""
        for part in (self.addresses, self.talk, self.tools, self.questions, self.busy, self.failures, self.threads):
            part()
        return self.seen

    # ---- what is asked ----------------------------------------------------------------------------------------------

    def addresses(self) -> None:
        self.ask("what there is", "GET", "/info")
        self.ask("an address that there is not", "GET", "/nothing")
        self.ask("a method that there is not", "DELETE", "/info")
        self.stream("run an agent that there is not", "run", asked("t0", "hello"), agent="nobody")
        self.stream("run without the members of a run", "run", {})
        self.ask("run with a text that is no JSON", "POST", "/agent/echo/run", b"{", {"Accept": "text/event-stream"})
        self.ask("transcribe", "POST", "/transcribe", b"{}")
        self.ask("memories", "GET", "/memories")
        self.ask("subscribe to the list of threads", "POST", "/threads/subscribe", {})
        self.ask("what the inspector may know", "GET", "/inspector-metadata")
        self.ask("annotate", "POST", "/annotate", {"type": "note", "threadId": "t1", "clientEventId": "1"})

    def talk(self) -> None:
        self.stream("connect to a thread that there is not", "connect", asked("never-seen"))
        first = self.stream("run", "run", asked("t1", "one"))
        self.stream("connect", "connect", asked("t1"))
        answer = {"id": next(e["messageId"] for e in first if "messageId" in e), "role": "assistant",
                  "content": "You said: one"}  # fmt: skip
        second = asked("t1", "one", "two")
        second["messages"].insert(1, answer)
        self.stream("run again in the thread", "run", second)
        self.stream("connect after two runs", "connect", asked("t1"))
        self.stream("connect by somebody else", "connect", asked("t1"), http=self.stranger)
        again = asked("t1", "one", runId="run-t1-again")
        self.stream("regenerate the first answer", "run", again)
        self.stream("connect after a regenerated answer", "connect", asked("t1"))
        wanted = asked("t-suggest", "hello", tools=[SUGGEST])
        self.stream("ask for suggestions", "suggest", wanted, agent="kit_suggesting")

    def tools(self) -> None:
        first = self.stream("run that calls a tool of the page", "run", asked("t2", "haiku", tools=[TOOL]), "haiku")
        call = next(event for event in first if event["type"] == "TOOL_CALL_START")
        arguments = "".join(event["delta"] for event in first if event["type"] == "TOOL_CALL_ARGS")
        answered = asked("t2", "haiku", tools=[TOOL], runId="run-t2-answered")
        function = {"name": call["toolCallName"], "arguments": arguments}
        answered["messages"] += [
            {
                "id": call.get("parentMessageId", call["toolCallId"]), "role": "assistant",
                "toolCalls": [{"id": call["toolCallId"], "type": "function", "function": function}],
            },
            {"id": "t2-shown", "role": "tool", "toolCallId": call["toolCallId"], "content": "shown"},
        ]  # fmt: skip
        self.stream("run with its result", "run", answered, "haiku")
        self.stream("connect after a tool of the page", "connect", asked("t2"), "haiku")

    def questions(self) -> None:
        first = self.stream("run that ends with a question", "run", asked("t3", "refund"), "refund")
        [question] = first[-1]["outcome"]["interrupts"]
        self.stream("connect while a question is open", "connect", asked("t3"), "refund")
        payload = {"approved": True, "amount": 7}
        resume = [{"interruptId": question["id"], "status": "resolved", "payload": payload}]
        self.stream("answer the question", "run", asked("t3", "refund", runId="run-t3-1", resume=resume), "refund")
        self.stream("connect after its answer", "connect", asked("t3"), "refund")

    def busy(self) -> None:
        for name, end in (("goes on", self.opened.set), ("is stopped", self.stop)):
            thread = f"t-{name.replace(' ', '-')}"
            self.heard.clear()
            self.opened.clear()
            running = threading.Thread(
                target=self.stream, args=(f"a run that {name}", "run", asked(thread, "go"), "kit_gate")
            )
            running.start()
            assert self.heard.wait(30)
            if end != self.stop:
                self.stream("run while another one is under way", "run", asked(thread, "go", "me too"), "kit_gate")
            end()
            running.join(30)
            self.stream(f"connect after a run that {name}", "connect", asked(thread), "kit_gate")
        self.ask("stop when nothing runs", "POST", "/agent/kit_gate/stop/t-is-stopped", {})
        self.ask("stop with a member that there is not", "POST", "/agent/kit_gate/stop/t-is-stopped", {"force": True})

    def stop(self) -> None:
        self.ask("stop", "POST", "/agent/kit_gate/stop/t-is-stopped", {"runId": "run-t-is-stopped-1"})

    def failures(self) -> None:
        self.stream("run of an agent that fails", "run", asked("t4", "tell me"), "kit_fails")
        self.stream("connect after a failure", "connect", asked("t4"), "kit_fails")

    def threads(self) -> None:
        self.ask("list the threads", "GET", "/threads?agentId=echo")
        self.ask("list them by somebody else", "GET", "/threads?agentId=echo", http=self.stranger)
        self.ask("messages of a thread", "GET", "/threads/t1/messages")
        self.ask("events of a thread", "GET", "/threads/t1/events")
        self.ask("state of a thread", "GET", "/threads/t1/state")
        self.ask("rename a thread", "PATCH", "/threads/t1", {"agentId": "echo", "name": "New"})
        self.ask("archive a thread", "POST", "/threads/t1/archive", {"agentId": "echo"})
        self.ask("delete a thread", "DELETE", "/threads/t1", {"agentId": "echo"})

    # ---- and how ----------------------------------------------------------------------------------------------------

    def ask(
        self, name: str, method: str, path: str, body: Body | bytes = b"", headers: Body | None = None,
        http: httpx.Client | None = None,
    ) -> None:  # fmt: skip
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        found = (http or self.http).request(
            method,
            f"/copilotkit{path}",
            content=content,
            headers={"Content-Type": "application/json", **(headers or {})},
        )
        self.seen[name] = f"{found.status_code} {shape(found)}".strip()

    def stream(
        self, name: str, method: str, body: Body, agent: str = "echo", http: httpx.Client | None = None
    ) -> Events:
        events: Events = []
        headers, plain = {"Accept": "text/event-stream"}, ""
        with (http or self.http).stream(
            "POST", f"/copilotkit/agent/{agent}/{method}", json=body, headers=headers
        ) as got:
            for line in got.iter_lines():
                if not line.startswith("data: "):
                    plain += line
                    continue
                events.append(json.loads(line[6:]))
                if events[-1]["type"] == "TEXT_MESSAGE_CONTENT":
                    self.heard.set()
        self.seen[name] = f"{got.status_code} {short(events) if got.status_code == 200 else members(json.loads(plain))}"
        return events


# ---- one line of it -------------------------------------------------------------------------------------------------


def shape(response: httpx.Response) -> str:
    """What a JSON answer holds, without what differs from time to time."""
    allow = f"Allow: {response.headers['allow']} " if "allow" in response.headers else ""
    return allow + (members(response.json()) if response.content else "")


def members(value: Any) -> str:
    """The names of an object's members; how many there are in a list; whether yes or no."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}{inside}" for name in sorted(value) for inside in [_inside(value[name])]) + "}"
    return type(value).__name__


def _inside(value: Any) -> str:
    if isinstance(value, bool):
        return f": {str(value).lower()}"
    return f"[{len(value)}]" if isinstance(value, list) else ""


def short(events: Events) -> str:
    """Events in order, in a word each: a text and a call are one, however many parts they came in."""
    return (
        " ".join(word for event in events if (word := WORDS.get(event["type"], lambda e: e["type"])(event)))
        or "nothing"
    )


def _started(event: Body) -> str:
    unseen = event.get("input", {}).get("messages")
    return "started" if unseen is None else f"started:{len(unseen)}"


def _finished(event: Body) -> str:
    lacks = "" if "threadId" in event and "runId" in event else " without ids"
    outcome = (event.get("outcome") or {}).get("type")
    return f"finished{lacks}" + (f":{outcome}" if outcome else "")


WORDS: dict[str, Callable[[Body], str]] = {
    "RUN_STARTED": _started,
    "RUN_FINISHED": _finished,
    "RUN_ERROR": lambda event: f"error:{event.get('code')}",
    "TEXT_MESSAGE_START": lambda _: "text",
    "TEXT_MESSAGE_CONTENT": lambda _: "",
    "TEXT_MESSAGE_END": lambda _: "",
    "TOOL_CALL_START": lambda _: "call",
    "TOOL_CALL_ARGS": lambda _: "",
    "TOOL_CALL_END": lambda _: "",
    "TOOL_CALL_RESULT": lambda _: "result",
    "MESSAGES_SNAPSHOT": lambda event: f"messages:{len(event['messages'])}",
    "STATE_SNAPSHOT": lambda _: "state",
}
