"""One user, one server, some threads: starts runs over HTTP as clients do, and reads what was stored."""

from __future__ import annotations

import json
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
from rest_framework.authtoken.models import Token

from agui_django.models import Run
from agui_django.protocol.consumer import Consumer
from agui_django.testing import assert_valid_run, override_agent
from tests import sse
from tests.clients.conftest import HERE, PACKAGES
from tests.live import LiveServer
from tests.stored import describe

Wire = dict[str, Any]


def user(text: str) -> Wire:
    """A user's message as a client writes it."""
    return {"id": f"user-{uuid.uuid4()}", "role": "user", "content": text}


class Stream:
    """A run that is read in a thread of its own."""

    def __init__(self, world: World, body: Wire) -> None:
        self.events: list[Wire] = []
        self._world = world
        self._body = body
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="reader")

    def _read(self) -> None:
        try:
            self._world.read(self._body, self.events)
        except BaseException as error:
            self._error = error

    def cancel(self) -> None:
        """Cancel the run as its user."""
        [run] = Run.objects.filter(status="running")
        assert self._world.http.post(f"/agui/runs/{run.pk}/cancel", json={}).status_code == 200

    def has(self, text: str) -> bool:
        """Whether a text has come."""
        if self._error is not None:
            raise self._error
        return text in json.dumps(self.events)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


class World:
    """A client of one thread; the agent is the last one that was put in place.

    Args:
        server: where.
        owner: whose threads they are.
        stack: what ends with the test.
    """

    thread = "t1"

    def __init__(self, server: LiveServer, owner: Any, stack: ExitStack) -> None:
        self.owner = owner
        self.agent = ""
        self.headers = {"Authorization": f"Token {Token.objects.create(user=owner).key}"}
        self.url = server.url
        self.http = stack.enter_context(httpx.Client(base_url=server.url, headers=self.headers, timeout=60))
        self._stack = stack

    def override(self, name: str, agent: Any) -> None:
        """Put an agent in place until the test ends."""
        self._stack.enter_context(override_agent(name, agent))
        self.agent = name

    # ---- runs ----

    def run(
        self,
        message: str | Wire | None = None,
        *,
        before: Sequence[Wire] = (),
        tools: Sequence[Wire] = (),
        resume: Sequence[Wire] = (),
        leave_at: str | None = None,
        **members: Any,
    ) -> list[Wire]:
        """Start a run and read it to its end.

        Args:
            message: the new message, or a user's text; None with `resume`.
            before: messages that the client sends in front of it.
            tools: what the page can do.
            resume: answers.
            leave_at: the type of the event behind which the client leaves.
            members: of the run input: ``state``.
        """
        new = [user(message)] if isinstance(message, str) else [message] if message else []
        body = {**self._body([*before, *new], tools=list(tools)), **members}
        if resume:
            body["resume"] = list(resume)
        events: list[Wire] = []
        self.read(body, events, leave_at=leave_at)
        if leave_at is None:
            assert_valid_run(events, messages=self._held(events), state=body.get("state"))
        return events

    @contextmanager
    def running(self, text: str) -> Iterator[Stream]:
        """A run that is read while the block runs; behind it, to its end."""
        with Stream(self, self._body([user(text)])) as stream:
            yield stream

    @contextmanager
    def joining(self) -> Iterator[Stream]:
        """What a page reads that was loaded again."""
        with Stream(self, self._body([])) as stream:
            yield stream

    def read(self, body: Wire, events: list[Wire], *, leave_at: str | None = None) -> None:
        """Send a request and append what comes."""
        with self.http.stream("POST", f"/agui/agents/{self.agent}", json=body) as response:
            if response.status_code != 200:
                raise AssertionError(response.read().decode())
            for _, event in sse.frames(response):
                events.append(event)
                if event["type"] == leave_at:
                    return

    def _body(self, messages: list[Wire], **members: Any) -> Wire:
        return {
            "threadId": self.thread, "runId": uuid.uuid4().hex, "protocolVersion": "1.1", "messages": messages,
            "tools": [], "context": [], "forwardedProps": {}, **members,
        }  # fmt: skip

    def _held(self, events: Sequence[Wire]) -> list[Wire]:
        """What a client held before a run: all that is stored but what the run brought."""
        new = {event.get("messageId") or event.get("toolCallId") for event in events}
        return [each for each in self.stored()["messages"] if each["id"] not in new]

    # ---- what came of it ----

    def stored(self, thread: str = thread) -> Any:
        """What the database holds, and ``tokens``: (input, output) of all runs together."""
        found = describe(thread, self.owner.username)
        runs = Run.objects.filter(thread__thread_id=thread).values_list("input_tokens", "output_tokens")
        return {**found, "tokens": tuple(map(sum, zip(*runs, strict=True)))}

    def messages_of(self, events: Sequence[Wire]) -> list[Wire]:
        """What a client that held nothing has now."""
        consumer = Consumer([], None)
        for event in events:
            consumer.feed(event)
        return consumer.messages

    def node(
        self, stories: Mapping[str, tuple[str, list[Wire]]], told: Mapping[str, Callable[[], None]]
    ) -> dict[str, Any]:
        """Let the official client of 1.0 take steps (see tests/clients/drive.mjs), all in one process.

        Args:
            stories: thread -> agent, steps.
            told: what to do when a step tells so.

        Returns:
            thread -> what the client saw.
        """
        specs = [
            {
                "client": PACKAGES["current"], "url": f"{self.url}/agui/agents/{agent}", "headers": self.headers,
                "threadId": thread, "steps": steps,
            }
            for thread, (agent, steps) in stories.items()
        ]  # fmt: skip
        with subprocess.Popen(
            ["node", "drive.mjs"],
            cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            killer = threading.Timer(90, process.kill)
            killer.start()
            assert process.stdin and process.stdout and process.stderr
            process.stdin.write(json.dumps(specs))
            process.stdin.close()
            lines = []
            for line in process.stderr:
                lines.append(line)
                if line.strip() in told:
                    told[line.strip()]()
            out = process.stdout.read()
            killer.cancel()
        assert process.returncode == 0, "".join(lines)
        return dict(zip(stories, json.loads(out), strict=True))
