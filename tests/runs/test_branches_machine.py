"""Whatever is asked again, edited, dropped and restored: what is in play is what a model says, and no row is lost."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from agui_django.models import Message, Run, Thread
from agui_django.protocol.errors import NotFound
from agui_django.runs.branches import branches, restore
from tests.runs.given import Given, says, user

_threads = itertools.count(1)

#: Ids of answers: few, so that the same ones stand in several branches.
ANSWERS = st.lists(st.sampled_from(["a1", "a2", "a3", "a4"]), max_size=2, unique=True)


@dataclass(eq=False)
class Said:
    """A message of the model: the same object wherever it stands."""

    id: str
    content: str


@dataclass
class Branch:
    """What stood behind a message; None: behind the beginning."""

    point: Said | None
    messages: list[Said] = field(default_factory=list)


class Conversation(RuleBasedStateMachine):
    """One thread; beside it the lists that it must consist of."""

    given: Given

    def __init__(self) -> None:
        super().__init__()
        self.thread_id = f"branches{next(_threads)}"
        self.numbers = itertools.count(1)
        self.play: list[Said] = []
        self.branches: dict[UUID, Branch] = {}
        self.made = 0

    # ---- what people and agents do ----

    @rule(answers=ANSWERS)
    def says_something(self, answers: list[str]) -> None:
        self.turn([self.said(f"u{next(self.numbers)}")], answers)

    @precondition(lambda self: self.play)
    @rule(answers=ANSWERS, data=st.data())
    def asks_again(self, answers: list[str], data: st.DataObject) -> None:
        asked = [n for n, message in enumerate(self.play) if message.id.startswith("u")]
        if asked:
            place = data.draw(st.sampled_from(asked)) + 1
            self.turn([], answers, cut=place, sent=self.play[:place])

    @rule(answers=ANSWERS, data=st.data())
    def edits(self, answers: list[str], data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.play)))
        after = self.play[place - 1].id if place else ""
        new = self.said(f"u{next(self.numbers)}")
        self.turn([new], answers, cut=place, forwardedProps={"supersedeAfter": after})

    @precondition(lambda self: self.branches)
    @rule(data=st.data())
    def writes_on_in_another_branch(self, data: st.DataObject) -> None:
        """A page that still holds a branch: its own messages are not brought back."""
        stale = self.one_of_them(data)
        new = self.said(f"u{next(self.numbers)}")
        self.turn([new], [], sent=[*self.branches[stale].messages, new])

    @precondition(lambda self: len(self.play) > 1)
    @rule(data=st.data())
    def agent_drops_one(self, data: st.DataObject) -> None:
        gone = self.play[data.draw(st.integers(0, len(self.play) - 1))]
        self.turn([self.said(f"u{next(self.numbers)}")], [], removed=gone)

    @precondition(lambda self: self.branches)
    @rule(data=st.data())
    def restores(self, data: st.DataObject) -> None:
        branch = self.one_of_them(data)
        way = self.way_to(branch)
        if way is None:
            with pytest.raises(NotFound):
                self.do(restore, self.thread, branch)
            return
        before = self.shape()
        run: Run = self.do(restore, self.thread, branch)
        left = self.exchange(way, run.pk)
        self.check()
        if left and len(way) == 1:
            again: Run = self.do(restore, self.thread, run.pk)
            self.exchange([run.pk], again.pk)
            # There and back: the same messages in play, and the same branches behind the same points.
            assert self.shape() == before

    # ---- what must be so ----

    @invariant()
    def check(self) -> None:
        rows = self.do(lambda: list(Message.objects.filter(thread__thread_id=self.thread_id).in_play()))
        assert [(row.message_id, row.wire) for row in rows] == [
            (said.id, row.wire) for said, row in zip(self.play, rows, strict=True)
        ]
        assert [said.content for said in self.play] == [row.search_text for row in rows]
        assert len({row.message_id for row in rows}) == len(rows)
        counted = self.do(lambda: Message.objects.filter(thread__thread_id=self.thread_id).count())
        assert counted == self.made  # nothing lost, nothing doubled
        if not self.made:
            return
        listed = {
            each.run: (point.message_id, each.count)
            for point in self.do(branches, self.thread)
            for each in point.alternatives
            if each.run is not None and self.branches[each.run].point is self.point_of(point.message_id, point.within)
        }
        wanted = {
            run: (branch.point.id if branch.point else "", len(branch.messages))
            for run, branch in self.branches.items()
            if self.way_to(run) is not None
        }
        assert listed == wanted

    # ---- the model ----

    def said(self, message_id: str) -> Said:
        self.made += 1
        return Said(message_id, f"{message_id} {next(self.numbers)}")

    def point_of(self, message_id: str, within: UUID | None) -> Said | None:
        place = self.play if within is None else self.branches[within].messages
        return next((said for said in place if said.id == message_id), None)

    def way_to(self, branch: UUID) -> list[UUID] | None:
        point = self.branches[branch].point
        if point is None or point in self.play:
            return [branch]
        outer = next((run for run, each in self.branches.items() if point in each.messages), None)
        before = None if outer is None else self.way_to(outer)
        return None if before is None else [*before, branch]

    def exchange(self, way: list[UUID], last: UUID) -> bool:
        """Exchange one after the other; whether the last one left a branch behind."""
        records = self.do(lambda: list(Run.objects.filter(thread=self.thread, transport="restore").order_by("pk")))
        by_branch = {record.input: record.pk for record in records}
        left = False
        for branch in way:
            mine = next(pk for text, pk in by_branch.items() if str(branch) in text) if branch != way[-1] else last
            taken = self.branches.pop(branch)
            place = self.play.index(taken.point) + 1 if taken.point else 0
            out, self.play[place:] = self.play[place:], taken.messages
            left = bool(out)
            if out:
                self.branches[mine] = Branch(taken.point, out)
        return left

    def shape(self) -> Any:
        found = ((branch.point, branch.messages) for branch in self.branches.values())
        ways = sorted(([id(point)], [id(said) for said in messages]) for point, messages in found)
        return [id(said) for said in self.play], ways

    # ---- helpers ----

    def one_of_them(self, data: st.DataObject) -> UUID:
        # By number: the keys are other ones at each replay.
        return list(self.branches)[data.draw(st.integers(0, len(self.branches) - 1))]

    def turn(
        self, new: list[Said], answers: list[str], *, cut: int | None = None, sent: list[Said] | None = None,
        removed: Said | None = None, **more: Any,
    ) -> None:  # fmt: skip
        wires = [user(said.id, said.content) for said in (new if sent is None else sent)]
        opened = self.given.open(threadId=self.thread_id, messages=wires, **more)
        assert opened.kind == "created" and opened.run is not None
        if cut is not None:
            out, self.play[cut:] = self.play[cut:], []
            if out:
                self.branches[opened.run.pk] = Branch(self.play[-1] if self.play else None, out)
        self.play += new
        made = []
        for message_id in answers:
            known = next((said for said in self.play if said.id == message_id), None)
            if known is None:
                known = self.said(message_id)
                self.play.append(known)
            else:  # an agent that says it anew
                known.content = f"{message_id} {next(self.numbers)}"
            made.append(says(known.id, known.content))
        gone = []
        if removed is not None:
            self.play.remove(removed)
            gone = [removed.id]
        assert self.given.finish(opened, messages=made, removed=gone)

    @property
    def thread(self) -> Thread:
        return Thread.objects.get(scope=self.given.scope, thread_id=self.thread_id)

    def do(self, function: Any, *args: Any) -> Any:
        return self.given.do(function, *args)


@pytest.mark.timeout(600)
def test_the_conversation_machine(given: Given) -> None:
    def machine() -> Conversation:
        made = Conversation()
        made.given = given
        return made

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
