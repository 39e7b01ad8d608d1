"""One request meets its thread: repeat, hydration, busy, answers, new messages, state; then the run is inserted.

Law: the thread's row is locked first, everything is judged before anything is written, and a refusal writes nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db.models import BooleanField, Case, Q, Subquery, Value, When
from django.db.models.functions import Coalesce
from django.utils import timezone

from agui_django.models import Interrupt, Message, Run, RunEvents, StateVersion, Thread
from agui_django.protocol.codec import clean, decode, encode
from agui_django.protocol.errors import InvalidInput, StateTooLarge, ThreadBusy
from agui_django.protocol.json_patch import json_equal
from agui_django.protocol.merge import merge
from agui_django.runs import attachments, history, merging, once, queued, reaping, resume, sql
from agui_django.runs.answerable import not_the_pages
from agui_django.runs.closing import store_messages
from agui_django.runs.known import base_of_client, base_while_active
from agui_django.runs.ledger import Ledger, last_words, state_digest, title
from agui_django.runs.requests import Hydration, Opened, StartRequest
from agui_django.runs.setup import Answer, RunSetup, Wire
from agui_django.statements import Select

#: How many ids of a client's list are looked up among the messages that went out of play.
LOOKED_UP = 500


class Opening:
    """The work of one `ThreadStore.open_run`, inside its transaction; made anew when that is tried again."""

    def __init__(self, alias: str, request: StartRequest) -> None:
        """Nothing is read yet."""
        self.alias = alias
        self.request = request
        self.policy = request.policy
        self.data = request.run_input.data
        self.now: datetime = timezone.now()
        self.warnings: list[str] = []
        self.ledger = Ledger(thread=0)
        self.stored: list[Wire] = []
        #: Of messages of the client's list that are out of play, the run that took them out.
        self.gone: dict[str, Any] = {}
        #: The state that a queued request's was made from, alone in a list; found when it arrived.
        self.base: Sequence[Any] = ()
        self.closed: list[int] = []

    def open(self) -> Opened:
        """Judge the request and carry it out.

        Raises:
            RequestError: it cannot be served.
            ResumeError: its answers cannot be taken.
        """
        where = [self.request.scope, self.request.run_input.thread_id]
        thread = next(iter(_locked_thread(self.alias, *where)), None)
        if self.request.upload is not None:
            self.request.upload.resolve(self.alias, thread)
        if thread is None:
            return self._create(None, resume.Plan(), self._reconcile(resume.Plan()))
        runs = self._runs(thread)
        active = next((run for run in runs if run.status in Run.ACTIVE), None)
        if active is not None and reaping.lost(active) and reaping.reap_here(self.alias, thread, active):
            thread.refresh_from_db(using=self.alias)
            runs, active = self._runs(thread), None
        # Behind the reaping: a resume that was lost before it acted has left its questions open, and is none to join.
        repeat = self._repeat(runs)
        if repeat is not None:
            return self._opened("attached", run=repeat)
        self._read_messages(thread)
        # Answers are judged before anything they meet: of two racing ones the second is told what became of the first.
        plan = self._plan(thread, runs) if self.data.get("resume") else None
        if self._asks_for_history(plan):
            if active is not None:
                return self._opened("joined", run=active, hydration=self._hydration(thread, active))
            if self.stored:
                return self._opened("hydration", hydration=self._hydration(thread, None))
        if plan is not None and plan.repeated is not None and not self._reconcile(plan, thread).new:
            return self._opened("attached", run=plan.repeated)
        waiting = [run for run in runs if run.status == Run.Status.QUEUED]
        if active is not None or (waiting and not self._answers()):
            return self._busy(thread, active, waiting)
        plan = self._plan(thread, runs) if plan is None else plan
        return self._create(thread, plan, self._reconcile(plan, thread))

    # ---- reading --------------------------------------------------------------------------------------------------

    def _runs(self, thread: Thread) -> list[Run]:
        """The runs that matter: active, queued, those that this request may repeat, and ``asking`` ones.

        These have open questions, or ones that expired and no run was told so.
        """
        unsettled = Q(status=Interrupt.Status.OPEN) | Q(status=Interrupt.Status.EXPIRED, answered_run=None)
        asking = Q(pk__in=Interrupt.objects.filter(unsettled, thread=thread).values("run_id"))
        mine = Q(run_id=self.request.run_input.run_id, digest=self.request.run_input.digest)
        open_ = Q(status__in=[Run.Status.QUEUED, *Run.ACTIVE])
        found = Run.objects.using(self.alias).filter(thread=thread).filter(open_ | asking | mine)
        flagged = found.annotate(asking=Case(When(asking, then=True), default=False, output_field=BooleanField()))
        return list(reaping.with_quiet(flagged).order_by("-created_at"))

    def _repeat(self, runs: Sequence[Run]) -> Run | None:
        """The run that this very request has started already; not one whose questions were opened again."""
        asking = {run.pk for run in runs if getattr(run, "asking", False)}
        for run in runs:
            same = run.run_id == self.request.run_input.run_id and run.digest == self.request.run_input.digest
            if same and not (run.ended and run.resumed_run_id in asking):
                return run
        return None

    def _read_messages(self, thread: Thread) -> None:
        self.ledger = Ledger(thread=thread.pk)
        sent = [message["id"] for message in self.data["messages"][-LOOKED_UP:]]
        wanted = Q(superseded_by=None) | Q(message_id__in=sent) if sent else Q(superseded_by=None)
        rows = Message.objects.using(self.alias).filter(wanted, thread=thread).order_by("order", "pk")
        for message_id, wire, order, superseded in rows.values_list("message_id", "wire", "order", "superseded_by"):
            if superseded is None:
                message = decode(wire)
                self.stored.append(message)
                self.ledger.note(message, order)
            else:
                self.gone[message_id] = superseded
        for message_id in self.gone.keys() & self.ledger.orders.keys():
            del self.gone[message_id]

    def _plan(self, thread: Thread, runs: Sequence[Run]) -> resume.Plan:
        asking = [run for run in runs if getattr(run, "asking", False)]
        return resume.plan(self.alias, thread, self.request, open_runs=asking, now=self.now, warn=self.warnings.append)

    def _asks_for_history(self, plan: resume.Plan | None) -> bool:
        """``messages: []`` without answers: a client that wants to be shown the thread.

        Answers to nothing that this thread ever asked are none (basic/patterns/interrupt-resume, error handling).
        """
        if self.data["messages"]:
            return False
        return not self._answers() if plan is None else plan.run is None and plan.repeated is None

    def _answers(self) -> bool:
        """Whether the request brings answers to questions."""
        props = self.data["forwardedProps"]
        command = props.get("command") if isinstance(props, dict) else None
        return bool(self.data.get("resume")) or (isinstance(command, dict) and "resume" in command)

    def _hydration(self, thread: Thread, active: Run | None) -> Hydration:
        return Hydration(
            thread_id=thread.thread_id,
            run_id=self.request.run_input.run_id,
            messages=self.stored,
            state=decode(thread.state) if active is None else merging.base_of(self.alias, thread)[1],
            interrupts=[] if active else resume.open_wires(self.alias, thread, self.now),
            active=active,
        )

    def _reconcile(self, plan: resume.Plan, thread: Thread | None = None) -> history.Reconciled:
        sent = self.data["messages"]
        props = self.data["forwardedProps"]
        after = props.get("supersedeAfter") if isinstance(props, dict) else None
        return history.reconcile(
            # What the site itself starts brings new messages only, never a list.
            self.policy.history if self.request.origin == "client" else "verified",
            self.stored,
            history.Request(
                messages=sent,
                supersede_after=after,
                resuming=plan.run is not None,
                gone=self.gone,
                roles=self.policy.client_roles,
                ours=not_the_pages(self.alias, thread, sent, self.stored, self.ledger) if thread is not None else (),
            ),
            self.warnings.append,
        )

    # ---- a busy thread --------------------------------------------------------------------------------------------

    def _busy(self, thread: Thread, active: Run | None, waiting: list[Run]) -> Opened:
        """What the agent's policy says. A request with answers never waits: it means the questions of this moment.

        Raises:
            ThreadBusy: the request is refused.
        """
        ahead = active or waiting[-1]  # the newest comes first
        if self.policy.busy == "cancel" and not self._answers():
            return self._opened("busy", run=ahead)
        if self.policy.busy != "queue" or self._answers():
            raise ThreadBusy(extra={"runId": ahead.run_id})
        if len(waiting) >= self.policy.queue_length:
            raise ThreadBusy("Too many runs wait for this thread.", extra={"runId": ahead.run_id})
        self.ledger.thread = thread.pk
        found = self._reconcile(resume.Plan(), thread)
        if self.data.get("state"):  # what there is now is what it can know, whatever there will be
            self.base = (self._base(thread, found, active),)
        self._state(thread, found)  # refused now rather than when its turn comes
        self._keep_files(thread, found)
        self.data = queued.stored(self.data, found, active, self.base)
        self.request = replace(self.request, claim="")
        uid = uuid.uuid4()
        run = self._insert_run(uid, thread, uid.hex, resume.Plan(), merging.left(thread), Run.Status.QUEUED)
        return self._opened("queued", run=run)

    def start_queued(self, thread: Thread, run: Run, found: queued.Found) -> Opened:
        """Start a queued run on its thread, which is free and locked; the request is what `queued.request_of` gave.

        Raises:
            ResumeError: the thread waits for answers.
        """
        self._read_messages(thread)
        self.base = found.base
        plan = self._plan(thread, self._runs(thread))
        return self._create(thread, plan, queued.late(self.alias, thread, self.stored, self.ledger, found), run)

    # ---- writing --------------------------------------------------------------------------------------------------

    def _create(
        self, thread: Thread | None, plan: resume.Plan, found: history.Reconciled, waited: Run | None = None
    ) -> Opened:
        uid = uuid.uuid4() if waited is None else waited.pk
        calls = self._given_up(plan, found)
        turn, answers = self._turn(thread, uid, plan, found)
        state, edited, differs = self._state(thread, found)
        left = 0 if thread is None else merging.left(thread)
        fresh = thread is None
        thread = self._save_thread(thread, found, state, edited=edited)
        if waited is None:
            self._keep_files(thread, found)
        self.ledger.thread = thread.pk
        self.ledger.began = self.ledger.version = thread.state_version
        self.ledger.resumed = plan.run is not None
        run = self._begin_queued(waited, turn, left) if waited else self._insert_run(uid, thread, turn, plan, left)
        if found.superseded:
            self._supersede(run, found.superseded)
        added = [*found.new, *self._stand_ins(thread, calls)]
        if added:
            store_messages(self.alias, uid, self.ledger, added)
        user = self.request.actor or self.request.user
        resume.carry_out(self.alias, plan, run, user, self.now, self.request.answerers)
        self.closed = plan.closed
        if edited or (fresh and thread.state_version):
            made = StateVersion(
                thread=thread,
                run=run,
                version=thread.state_version,
                state=thread.state,
                digest=state_digest(state),
                origin=StateVersion.Origin.CLIENT if edited else StateVersion.Origin.AGENT,
                user_id=_key(user) if edited else None,
            )
            sql.insert_row(self.alias, made)
        by_id = {message["id"]: message for message in [*found.kept, *added]}
        messages = [by_id[key] for _, key in sorted((order, key) for key, order in self.ledger.orders.items())]
        setup = self._setup(run, thread, messages, found.new, state, plan.entries)
        setup.state_differs = differs
        setup.answers = plan.answers | answers
        if self.request.claim and self.request.first_event is not None:
            first = setup.first = self.request.first_event(setup)
            row = {"run_id": uid, "first_seq": 1, "last_seq": 1, "text": first.text, "plain": first.plain}
            sql.insert(self.alias, RunEvents, [row])
        return self._opened("created", run=run, setup=setup)

    def _supersede(self, run: Run, ids: Sequence[str]) -> None:
        """Take messages out of play. Together they are a branch, behind the message that stood before the first."""
        orders = self.ledger.orders
        first = min(orders[message_id] for message_id in ids)
        before = max(((order, key) for key, order in orders.items() if order < first), default=(0, ""))[1]
        rows = Message.objects.using(self.alias).filter(thread=self.ledger.thread, superseded_by=None)
        point = Message.objects.filter(thread=self.ledger.thread, superseded_by=None, message_id=before).values("pk")
        behind = Coalesce(Subquery(point), 0) if before else Value(0)
        rows.filter(message_id__in=ids).update(superseded_by=run, behind=behind)
        self.ledger.forget(ids)

    def _keep_files(self, thread: Thread, found: history.Reconciled) -> None:
        attachments.check_small(self.request.run_input, found.new)
        if self.request.upload is not None:
            self.request.upload.keep(self.alias, thread, found.new, self.request.user)

    def _given_up(self, plan: resume.Plan, found: history.Reconciled) -> list[str]:
        """The calls that get a stand-in: those the user moved on from, and those of runs that were stopped or lost."""
        calls = history.dangling([*found.kept, *found.new])
        if not calls or plan.run is not None:
            return []
        if found.user_moved_on:
            return list(history.passed([*found.kept, *found.new], calls))
        ended = Run.objects.using(self.alias).filter(status__in=[Run.Status.CANCELLED, Run.Status.FAILED])
        makers = Message.objects.using(self.alias).filter(thread=self.ledger.thread, message_id__in=calls.values())
        stopped = set(makers.filter(superseded_by=None, run__in=ended).values_list("message_id", flat=True))
        return [call for call, maker in calls.items() if maker in stopped]

    def _stand_ins(self, thread: Thread, calls: list[str]) -> list[Wire]:
        """What a model reads of calls that were given up."""
        unknown = once.cut_off(self.alias, thread, calls, self.stored) if calls else set()
        return [history.stand_in(call, history.UNKNOWN if call in unknown else history.NO_RESULT) for call in calls]

    def _turn(
        self, thread: Thread | None, uid: uuid.UUID, plan: resume.Plan, found: history.Reconciled
    ) -> tuple[str, dict[str, Answer]]:
        """The turn: a resume and the page's answers to calls continue one, everything else begins one."""
        if plan.run is not None:
            return plan.run.turn, {}
        answered = [message["toolCallId"] for message in found.new if message["role"] == "tool"]
        if thread is not None and answered and not found.user_moved_on:
            makers = [self.ledger.calls[call] for call in answered if call in self.ledger.calls]
            rows = Message.objects.using(self.alias).filter(thread=thread, message_id__in=makers, superseded_by=None)
            turn = rows.exclude(run=None).order_by("-order").values_list("run__turn", flat=True).first()
            if turn:
                return turn, resume.answers_of_turn(self.alias, thread, turn)
        return uid.hex, {}

    def _state(self, thread: Thread | None, found: history.Reconciled) -> tuple[Any, bool, bool]:
        """The state to start from, whether the client edited it, and whether it differs from what the client holds.

        Raises:
            InvalidInput: the client's edit does not fit the agent's schema.
            StateTooLarge: it is too large.
        """
        sent = self.data.get("state")
        nothing = sent is None or sent == {}
        holds = {} if nothing else sent
        if thread is None:
            start = clean(self.policy.first_state()) if nothing else sent
            if not nothing:
                self._check_state(sent, None)
            return start, not nothing, not json_equal(holds, start)
        own = decode(thread.state)
        ours = nothing or json_equal(sent, own) or (self.policy.state_policy == "server" and thread.state_version > 0)
        if not ours:
            versions = StateVersion.objects.using(self.alias).filter(thread=thread, digest=state_digest(sent))
            ours = versions.exists()
        start = own if ours else self._merged(thread, own, sent, self._base(thread, found))
        # Who edited a thread at rest did not tell all who watch it: its next run does.
        differs = thread.base_version is not None or not json_equal(holds, start)
        return start, start is not own, differs

    def _base(self, thread: Thread, found: history.Reconciled, active: Run | None = None) -> Any:
        """What the client's state was made from. A list that it cut to ask again or to edit does not say."""
        if self.base:
            return self.base[0]
        if found.superseded:
            return (
                merging.present_state(self.alias, thread, active) if active else merging.base_of(self.alias, thread)[1]
            )
        known = self.data["messages"], self.stored, self.gone
        if active is not None:
            return base_while_active(self.alias, thread, active, *known)
        return base_of_client(self.alias, thread, *known)

    def _merged(self, thread: Thread, own: Any, sent: Any, base: Any) -> Any:
        """The client's edit of a base, on top of what others have made of the state since; `own`: it is none.

        An edit that is good in itself, and does not go with theirs, is dropped: the client is told the state there is,
        and its message is not lost.
        """
        self._check_state(sent, own)
        merged = merge(base, own, sent)
        if json_equal(merged, own):
            return own
        if json_equal(merged, sent):
            return merged
        try:
            self._check_state(merged, own)
        except (InvalidInput, StateTooLarge):
            self.warnings.append("The state that was sent was dropped: it does not go with edits made meanwhile.")
            return own
        return merged

    def _check_state(self, state: Any, own: Any) -> None:
        if not merging.fits(encode(state)):
            raise StateTooLarge
        self.policy.check_state(state, own)

    def _save_thread(self, thread: Thread | None, found: history.Reconciled, state: Any, *, edited: bool) -> Thread:
        values: dict[str, Any] = {"agent": self.policy.name, "updated_at": self.now}
        if words := last_words(found.new):
            values["last_words"] = words
        if (thread is None or not thread.title) and (text := title(found.new)):
            values["title"] = text
        elif thread is not None and found.superseded and self._titled_by_first_words(thread):
            values["title"] = title([*found.kept, *found.new]) or thread.title
        if thread is None:
            values |= {
                "scope": self.request.scope,
                "thread_id": self.request.run_input.thread_id,
                "owner_id": _key(self.request.owner),
                "state": encode(state),
                "state_version": 0 if state == {} else 1,
                "created_at": self.now,
            }
            return sql.create(self.alias, Thread, values)
        if edited:
            values |= {"state": encode(state), "state_version": thread.state_version + 1}
        if thread.base_version is not None:
            values["base_version"] = None
        sql.update(self.alias, Thread, values, id=thread.pk)
        for name, value in values.items():
            setattr(thread, name, value)
        return thread

    def _titled_by_first_words(self, thread: Thread) -> bool:
        return thread.titled_by == Thread.TitledBy.FIRST_WORDS and thread.title == title(self.stored)

    def _begin_queued(self, run: Run, turn: str, left: int) -> Run:
        """A queued run takes its thread. Its place among the thread's runs is where it begins, not where it came."""
        run.status = Run.Status.RUNNING if self.request.claim else Run.Status.PENDING
        run.claim, run.turn = self.request.claim, turn
        run.started_at = self.now if self.request.claim else None
        run.created_at = run.heartbeat = self.now
        run.base_version = left
        run.input = encode(_without_history(self.data))
        names = ("status", "claim", "turn", "started_at", "created_at", "base_version", "input")
        values = {name: getattr(run, name) for name in names} | {"heartbeat": sql.NOW}
        sql.update(self.alias, Run, values, uuid=run.pk)
        return run

    def _insert_run(
        self,
        uid: uuid.UUID,
        thread: Thread,
        turn: str,
        plan: resume.Plan,
        left: int,
        status: Run.Status | None = None,
    ) -> Run:
        request, data = self.request, self.data
        stored = data if status is not None else _without_history(data)
        values = {
            "uuid": uid,
            "thread_id": thread.pk,
            "run_id": request.run_input.run_id,
            "digest": request.run_input.digest,
            "agent": self.policy.name,
            "user_id": _key(request.user),
            "actor_id": _key(request.actor),
            "extra": encode(dict(request.extra)),
            "language": request.language[:20],
            "time_zone": request.time_zone[:64],
            "status": status or (Run.Status.RUNNING if request.claim else Run.Status.PENDING),
            "claim": request.claim,
            "started_at": self.now if request.claim else None,
            "created_at": self.now,
            "transport": request.transport,
            "protocol_version": (request.run_input.protocol_version or "")[:20],
            "input": encode(stored),
            "turn": turn,
            "base_version": left,
            "resumed_run_id": _key(plan.run or request.resumed_run),
            "heartbeat": self.now,
        }
        run = sql.create(self.alias, Run, values, "heartbeat")
        run.thread = thread
        return run

    def _setup(
        self, run: Run, thread: Thread, messages: list[Wire], new: list[Wire], state: Any, entries: list[Wire]
    ) -> RunSetup:
        data = {**self.data, "messages": messages, "state": state}
        data.pop("resume", None)
        if entries:
            data["resume"] = entries
        return RunSetup(
            run_id=run.run_id,
            thread_id=thread.thread_id,
            address=run.uuid.hex,
            agent=run.agent,
            input=data,
            new_messages=list(new),
            messages=messages,
            state=state,
            resume=entries,
            turn=run.turn,
            user=self.request.user,
            actor=self.request.actor,
            thread=thread,
            extra=dict(self.request.extra),
            language=run.language,
            time_zone=run.time_zone,
            protocol_version=run.protocol_version,
            parent_run_id=self.data.get("parentRunId"),
            ledger=self.ledger,
        )

    def _opened(self, kind: Any, **values: Any) -> Opened:
        return Opened(kind, closed=self.closed, warnings=self.warnings, **values)


#: Finds and locks a thread by its scope and id: the first statement of every run.
_locked_thread = Select(
    lambda alias: Thread.objects.using(alias).select_for_update(no_key=True).filter(Q(scope="") & Q(thread_id=""))
)


def _without_history(data: Wire) -> Wire:
    """The input as a run's row holds it: messages and state have rows of their own."""
    return {key: value for key, value in data.items() if key not in ("messages", "state")}


def _key(row: Any) -> Any:
    """The key of what can be stored: an anonymous user is nobody."""
    return getattr(row, "pk", None)
