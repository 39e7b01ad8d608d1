"""How many statements an answer takes: the same for one row and for a hundred."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections

from agui_django.api.base import ListView
from agui_django.api.routes import urlpatterns
from agui_django.runs.database import database_alias, get_pool
from tests.api.conftest import Client, Rows

pytestmark = pytest.mark.django_db(transaction=True)


class Counter:
    """Counts statements of the app's own threads."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.statements.append(sql)
        return execute(sql, params, many, context)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    """Counts what every job of the pool executes."""
    counting = Counter()
    pool = get_pool()
    work = type(pool)._work

    def counted(self: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        def job() -> Any:
            with connections[database_alias()].execute_wrapper(counting):
                return function(*args, **kwargs)

        return work(self, job)

    monkeypatch.setattr(type(pool), "_work", counted)
    yield counting


#: Each list, with what makes another row of it.
LISTS = {
    "threads": "threads?limit=200",
    "threads searched": "threads?limit=200&search=hello",
    "threads filtered": "threads?limit=200&hasOpenInterrupts=true&hasError=false&active=false",
    "thread-messages": "threads/{thread}/messages?limit=200",
    "thread-runs": "threads/{thread}/runs?limit=200",
    "thread-state-versions": "threads/{thread}/state/versions?limit=200",
    "runs": "runs?limit=200",
    "interrupts": "interrupts?limit=200",
    "feedback": "feedback?limit=200",
    "message-feedback": "messages/{message}/feedback?limit=200",
    "usage": "usage?by=day,agent,model,user",
    "thread-branches": "threads/{thread}/branches",
}


def test_every_list_is_counted() -> None:
    lists = {pattern.name for pattern in urlpatterns if issubclass(getattr(pattern.callback, "cls", object), ListView)}
    assert lists - {None} <= set(LISTS)


class Growing:
    """Rows of everything, more and more of them."""

    def __init__(self, owner: Any) -> None:
        self.owner, self.count = owner, 0
        self.first = Rows(owner, "t0")
        self.message = self.first.message("m0")

    def grow(self, count: int, users: Any) -> None:
        while self.count < count:
            number = self.count = self.count + 1
            made = Rows(self.owner, f"t{number}")
            made.message("m1", "hello")
            made.interrupt(made.run(status="interrupted", agent=f"a{number}"))
            run = self.first.run()
            later = self.first.run()
            self.first.message(f"m{number}", "hello", run=run, behind=self.message.pk, superseded_by=later)
            spoken = self.first.message(f"n{number}", "hello", run=later)
            self.first.thread.state_versions.create(version=number + 1, state="{}", origin="agent")
            self.message.feedback.create(thread=self.first.thread, user=users(f"u{number}"), rating=1)
            spoken.feedback.create(thread=self.first.thread, user=self.owner, rating=1)


def test_counts_do_not_grow(api: Client, ada: Any, staff: Any, counter: Counter, django_user_model: Any) -> None:
    everything = Client(staff(
        "view_thread", "view_run", "view_message", "view_interrupt", "view_stateversion", "view_feedback"
    ))  # fmt: skip
    growing = Growing(ada)
    counts: dict[tuple[str, str], list[int]] = {}
    rows: dict[tuple[str, str], list[int]] = {}
    for size in (1, 10, 100):
        growing.grow(size, lambda name: django_user_model.objects.create(username=name))
        ids = {"thread": growing.first.thread.pk, "message": growing.message.pk}
        for name, path in LISTS.items():
            for who, client in (("owner", api), ("staff", everything)):
                client.get(path.format(**ids))  # what is looked up once per process
                counter.statements.clear()
                page = client.get(path.format(**ids))
                counts.setdefault((name, who), []).append(len(counter.statements))
                rows.setdefault((name, who), []).append(len(page["results"]))
    for name, found in counts.items():
        assert len(set(found)) == 1, (name, found)
        # the login is one; what staff may do takes two more
        assert found[0] <= (5 if name[1] == "owner" else 7), (name, found)
    growing_lists = set(LISTS) - {"usage", "thread-branches", "message-feedback"}
    for name in growing_lists:
        assert rows[name, "staff"][2] >= 100, name
        assert rows[name, "staff"][0] < 10, name
