"""The cases of area 4-channels, over a real socket and with a channel layer configured."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from channels.layers import InMemoryChannelLayer, channel_layers
from django.test import override_settings

from agui_django.models import Message, Run, RunEvents
from agui_django.protocol import codec
from agui_django.testing import override_agent
from tests.cases.script import ScriptAgent
from tests.cases.seed import store
from tests.cases.sockets import Socket
from tests.cases.test_cases import CASES, NAME
from tests.live import Caller, LiveServer, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def layer(request: pytest.FixtureRequest, settings: Any) -> Any:
    """The channel layer that a case asks for."""
    config = request.param
    backend = "channels.layers.InMemoryChannelLayer"
    with override_settings(CHANNEL_LAYERS={"default": {"BACKEND": backend, "CONFIG": config}}):
        made = channel_layers["default"]
        assert isinstance(made, InMemoryChannelLayer)
        yield made


def ended(event: dict[str, Any]) -> bool:
    return event["type"] in ("RUN_FINISHED", "RUN_ERROR")


@contextmanager
def subscribed(server: LiveServer, user: Any, thread_id: str) -> Iterator[Socket]:
    """A socket that follows a thread and has been shown its present."""
    with Socket(server, user) as socket:
        socket.send({"type": "follow", "threadId": thread_id})
        assert [event["type"] for event in socket.until(ended)] == ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_FINISHED"]
        yield socket


@pytest.mark.parametrize("layer", [CASES["W01"]["input"]["channel_layer"]], indirect=True)
def test_w01_more_messages_than_a_channel_holds(server: LiveServer, ada: Any, layer: Any) -> None:
    case = CASES["W01"]
    assert case["input"]["ws"] == ["subscribe t1"]
    assert layer.capacity == 100
    store({}, ada, agent=NAME)
    caller = Caller(server, ada, NAME)
    with override_agent(NAME, ScriptAgent(case["input"]["agent"])), subscribed(server, ada, "t1") as socket:
        caller.run(caller.body({}))
        events = socket.until(ended)
    counted = Counter(event["type"] for event in events)
    for kind, number in case["expected"]["ws_events"].items():
        assert counted[kind] == number
    assert case["expected"]["ws_text_equals_db"]
    text = "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
    assert json.loads(Message.objects.get(role="assistant").wire)["content"] == text
    assert len(text) == 1500
    # contiguous: the log itself, event by event
    stored = RunEvents.objects.order_by("first_seq").values_list("text", flat=True)
    assert events == [codec.decode(line) for batch in stored for line in batch.split("\n")]


@pytest.mark.parametrize("layer", [{}], indirect=True)
def test_w10_a_thread_id_that_is_no_group_name(server: LiveServer, ada: Any, layer: Any) -> None:
    case = CASES["W10"]
    thread_id = case["input"]["threadId"]
    # what a layer would refuse: its length, its slash, its umlaut
    assert len(thread_id) > 100
    with pytest.raises(TypeError):
        layer.require_valid_group_name(thread_id)
    store({}, ada, agent=NAME, thread_id=thread_id)
    caller = Caller(server, ada, NAME)
    with override_agent(NAME, ScriptAgent(case["input"]["agent"])), subscribed(server, ada, thread_id) as socket:
        caller.run(caller.body({"threadId": thread_id}))
        counted = Counter(event["type"] for event in socket.until(ended))
    assert counted == case["expected"]["ws_events"]


def test_w13_a_socket_ends_at_once(
    server: LiveServer, ada: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agui_django.transports.websocket import AgUiConsumer

    case = CASES["W13"]
    assert case["input"]["ws"] == ["connect", "run with agent sleeping 60 s", "stop", "close"]
    caplog.set_level(logging.WARNING)
    exits: list[float] = []
    real = AgUiConsumer.__call__

    async def timed(self: Any, *args: Any) -> None:
        try:
            await real(self, *args)
        finally:
            exits.append(time.monotonic())

    monkeypatch.setattr(AgUiConsumer, "__call__", timed)
    caller = Caller(server, ada, NAME)
    with override_agent(NAME, ScriptAgent([{"type": "RUN_STARTED"}, {"$sleep": 60}])):
        with Socket(server, ada, NAME) as socket:
            socket.send(caller.body({"protocolVersion": "1.1"}))
            assert socket.event()["type"] == "RUN_STARTED"
            asked = time.monotonic()
            socket.send({"type": "cancel"})
            last = socket.until(ended)[-1]
            assert time.monotonic() - asked < case["expected"]["terminal_event_within_s"]
            assert last["outcome"] == {"type": "cancelled"}
        left = time.monotonic()
        wait_until(lambda: exits, 5)
        assert exits[0] - left < case["expected"]["consumer_exit_within_s"]
    assert Run.objects.get().status == case["expected"]["db"]["run.status"]
    for text in case["expected"]["log_never"]:
        assert text not in caplog.text
