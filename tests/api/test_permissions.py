"""Every address and method of the API, as a stranger, the owner, another user, and staff without and with permission.

The list of addresses comes from the URLconf: one without a row here fails.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agui_django.api.routes import urlpatterns
from agui_django.models import Thread
from tests.api.conftest import Client, Rows

pytestmark = pytest.mark.django_db(transaction=True)

NO_ID = str(uuid.uuid4())


@dataclass
class Row:
    """What an address answers.

    Attributes:
        path: with the names of what `Given` makes.
        owner: the status for the owner.
        staff: and for staff who hold `permissions`.
        permissions: what staff need; empty: nothing helps.
        half: a permission that lets staff see it, but not do it: 403.
        listed: whether it is a list of everything: others get it, without what is ada's.
        everyone: whether it is nobody's: all who are logged in get it.
    """

    path: str
    permissions: tuple[str, ...] = ()
    body: Any = None
    owner: int = 200
    staff: int = 200
    half: str = ""
    listed: bool = False
    everyone: bool = False
    media: str = "application/json"


THREAD = "view_thread"
MATRIX: dict[tuple[str, str], Row] = {
    ("agents", "GET"): Row("agents", everyone=True),
    ("schema", "GET"): Row("schema", everyone=True),
    ("docs", "GET"): Row("docs", everyone=True),
    ("threads", "GET"): Row("threads", (THREAD,), listed=True),
    ("thread", "GET"): Row("threads/{thread}", (THREAD,)),
    ("thread", "PATCH"): Row("threads/{thread}", (THREAD, "change_thread"), {"title": "x"}, half=THREAD),
    ("thread", "DELETE"): Row("threads/{thread}", (THREAD, "delete_thread"), owner=204, staff=204, half=THREAD),
    ("thread-branches", "GET"): Row("threads/{thread}/branches", ("view_message",)),
    ("thread-branch-restore", "POST"): Row(
        # 409: a question waits
        f"threads/{{thread}}/branches/{NO_ID}/restore", (THREAD, "change_thread"), owner=409, staff=409, half=THREAD
    ),
    ("thread-fork", "POST"): Row(
        "threads/{thread}/fork", (THREAD, "add_thread"), {"messageId": "m1"}, owner=201, staff=201, half=THREAD
    ),
    ("thread-export", "GET"): Row(
        "threads/{thread}/export",
        ("view_thread", "view_run", "view_runevents", "view_message", "view_stateversion", "view_interrupt",
         "view_feedback", "view_attachment"),
    ),
    ("thread-messages", "GET"): Row("threads/{thread}/messages", ("view_message",)),
    ("thread-runs", "GET"): Row("threads/{thread}/runs", ("view_run",)),
    ("thread-state", "GET"): Row("threads/{thread}/state", ("view_stateversion",)),
    ("thread-state", "PATCH"): Row(
        "threads/{thread}/state", ("view_stateversion", "change_thread"), {"a": 2}, half="view_stateversion",
        media="application/merge-patch+json",
    ),
    ("thread-state-versions", "GET"): Row("threads/{thread}/state/versions", ("view_stateversion",)),
    ("thread-state-version", "GET"): Row("threads/{thread}/state/versions/1", ("view_stateversion",)),
    ("runs", "GET"): Row("runs", ("view_run",), listed=True),
    ("run", "GET"): Row("runs/{run}", ("view_run",)),
    ("run-events", "GET"): Row("runs/{run}/events", ("view_runevents",)),
    ("run-cancel", "POST"): Row("runs/{run}/cancel", ("view_run", "change_run"), half="view_run"),
    ("interrupts", "GET"): Row("interrupts", ("view_interrupt",), listed=True),
    ("interrupt", "GET"): Row("interrupts/{interrupt}", ("view_interrupt",)),
    ("interrupt-answer", "POST"): Row(
        "interrupts/{interrupt}/answer", ("answer_interrupt",), {"status": "resolved", "payload": 1},
        half="view_interrupt",
    ),
    ("interrupt-seen", "POST"): Row("interrupts/{interrupt}/seen", ("view_interrupt",), owner=204, staff=204),
    ("feedback", "GET"): Row("feedback", ("view_feedback",), listed=True),
    ("message-feedback", "GET"): Row("messages/{message}/feedback", ("view_message",)),
    ("message-feedback", "PUT"): Row(
        "messages/{message}/feedback", ("view_message", "add_feedback"), {"rating": 1}, half="view_message"
    ),
    ("message-feedback", "DELETE"): Row("messages/{message}/feedback", ("view_message",), owner=204, staff=204),
    ("usage", "GET"): Row("usage", ("view_run",), listed=True),
    ("unknown", "GET"): Row("no/such/thing", owner=404, everyone=True),
}  # fmt: skip


def routes() -> set[tuple[str, str]]:
    found = set()
    for pattern in urlpatterns:
        view = getattr(pattern.callback, "cls", None)
        methods = ["GET"] if view is None else [name for name in view.methods() if name != "HEAD"]
        # The twin with a slash at its end is the same view, without a name.
        found |= {(pattern.name, method) for method in methods if pattern.name}
    return found


def test_every_address_is_in_the_matrix() -> None:
    assert routes() == set(MATRIX)
    named = {pattern.callback for pattern in urlpatterns if pattern.name}
    assert all(pattern.callback in named for pattern in urlpatterns)


@pytest.fixture
def made(ada: Any) -> Callable[[], dict[str, Any]]:
    """Makes a thread of ada's with one of everything, each time another one."""

    def make() -> dict[str, Any]:
        rows = Rows(ada, uuid.uuid4().hex)
        run = rows.run({"type": "RUN_STARTED"}, {"type": "RUN_FINISHED"}, status="interrupted")
        message = rows.message("m1", run=run)
        message.feedback.create(thread=rows.thread, user=ada, rating=1)
        interrupt = rows.interrupt(run)
        return {"thread": rows.thread.pk, "run": run.pk, "message": message.pk, "interrupt": interrupt.pk}

    return make


@pytest.mark.parametrize(("name", "method"), sorted(MATRIX))
def test_the_matrix(name: str, method: str, made: Any, ada: Any, bob: Any, staff: Any) -> None:
    row = MATRIX[name, method]

    def answer(user: Any, ids: dict[str, Any] | None = None) -> tuple[int, bytes]:
        path = row.path.format(**(ids or made()))
        exchange = Client(user).ask(method, path, row.body, media=row.media)
        return exchange.status, b"".join(exchange.chunks)

    stranger = 404 if name == "unknown" else 401
    assert answer(None)[0] == stranger
    assert answer(ada)[0] == row.owner
    if row.everyone:
        assert answer(bob)[0] == row.owner
        return
    if row.listed:
        held = made()
        assert empty(answer(bob, held))
        assert empty(answer(staff(name="without"), held))
        assert not empty(answer(ada, held))
        assert not empty(answer(staff(*row.permissions), held))
        return
    ids = made()
    foreign = answer(bob, ids)
    # A foreign id is answered as an unknown one is; only the reference differs.
    gone = {key: NO_ID if key == "run" else 10**9 for key in ids}
    unknown = answer(bob, gone)
    assert (foreign[0], code(foreign)) == (unknown[0], code(unknown)) == (404, "not_found")
    assert answer(staff(name="without"), ids)[0] == 404
    if row.half:
        refused = answer(staff(row.half, name="half"), ids)
        assert (refused[0], code(refused)) == (403, "permission_denied")
    assert Thread.objects.filter(pk=ids["thread"]).values_list("title", "state").get() == ("", '{"a": 1}')
    status, body = answer(staff(*row.permissions), ids)
    assert status == row.staff, body


def test_permissions_count_for_staff_only(made: Any, staff: Any) -> None:
    kim = staff("view_thread")
    ids = made()
    assert Client(kim).ask("GET", f"threads/{ids['thread']}").status == 200
    kim.is_staff = False
    kim.save()
    assert Client(kim).ask("GET", f"threads/{ids['thread']}").status == 404


def code(answer: tuple[int, bytes]) -> Any:
    return json.loads(answer[1])["error"]["code"]


def empty(answer: tuple[int, bytes]) -> bool:
    status, body = answer
    assert status == 200
    return not json.loads(body)["results"]
