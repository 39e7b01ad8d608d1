"""Fills the demo site's database with conversations, to try lists and searches at size. Refuses without DEBUG."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from datetime import timedelta
from itertools import accumulate, islice
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection
from django.utils import timezone

from agui_django.models import Feedback, Interrupt, Message, Run, RunEvents, StateVersion, Thread
from agui_django.protocol.codec import encode
from agui_django.runs.ledger import STEP, state_digest

#: Messages at most: some gigabytes.
MOST = 1_000_000
#: Messages that one run brings and makes.
PER_RUN = 10
#: Threads that are made at once.
THREADS = 100

#: As in a language: a few words stand everywhere, most of them nowhere else.
COMMON = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were her all she there would their we him been has when who will more no if out so said what up its about "
    "order invoice kettle parcel refund address delivery customer Größe café schema python question please thanks today"
)
WORDS = [*COMMON.split(), *(f"word{number}" for number in range(20_000))]
#: The second word is half as frequent as the first, the third a third ...
OFTEN = list(accumulate(1 / (rank + 1) for rank in range(len(WORDS))))


class Command(BaseCommand):
    """``manage.py agui_seed --threads 10000 --messages 50``."""

    help = "Adds seeded threads with messages, runs, logs, states, questions and feedback. DEBUG only."

    def add_arguments(self, parser: CommandParser) -> None:
        """How much of what."""
        parser.add_argument("--threads", type=int, default=100)
        parser.add_argument("--messages", type=int, default=50, help="in each thread")
        parser.add_argument("--users", type=int, default=20, help="whose threads they are")
        parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same texts")

    def handle(self, *args: Any, **options: Any) -> None:
        """Make them, a hundred threads in a transaction."""
        if not settings.DEMO:
            raise CommandError("Made-up conversations are for the demo only: set AGUI_DEBUG=1.")
        threads, messages, users = options["threads"], options["messages"], options["users"]
        if min(threads, messages, users) < 1 or threads * messages > MOST:
            raise CommandError(f"At least one of each, and at most {MOST} messages.")
        dice = random.Random(options["seed"])  # noqa: S311 - made-up texts
        made = (_Conversation(dice, owner, messages) for owner, _ in zip(_owners(users), range(threads), strict=False))
        while some := list(islice(made, THREADS)):
            for model in (Thread, Run, RunEvents, StateVersion, Message, Interrupt, Feedback):
                rows = [row for each in some for row in each.rows[model]]
                model.objects.bulk_create(rows, batch_size=500)
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("ANALYZE")
        self.stdout.write(f"{threads} threads with {messages} messages each.")


def _owners(count: int) -> Iterator[Any]:
    """Users in turn, for ever."""
    users = get_user_model().objects
    found = [users.get_or_create(username=f"seeded-{number}")[0] for number in range(count)]
    while True:
        yield from found


class _Conversation:
    """The rows of one thread, by model."""

    def __init__(self, dice: random.Random, owner: Any, messages: int) -> None:
        self.dice = dice
        self.began = timezone.now() - timedelta(minutes=dice.randrange(60 * 24 * 90))
        self.thread = Thread(
            scope=f"user:{owner.pk}", thread_id=str(uuid.UUID(int=dice.getrandbits(128))), owner=owner, agent="echo",
            title=self.text(5), last_words=self.text(8), created_at=self.began, archived=dice.random() < 0.1,
            updated_at=self.began + timedelta(minutes=messages), input_tokens=messages * 40,
            output_tokens=messages * 90,
        )  # fmt: skip
        self.rows: dict[Any, list[Any]] = {Thread: [self.thread]}
        for model in (Run, RunEvents, StateVersion, Message, Interrupt, Feedback):
            self.rows[model] = []
        for number in range(messages):
            if number % PER_RUN == 0:
                self.run(owner, number)
            self.message(owner, number)
        if dice.random() < 0.02:
            self.ask()

    def text(self, words: int) -> str:
        return " ".join(self.dice.choices(WORDS, cum_weights=OFTEN, k=words))

    def run(self, owner: Any, number: int) -> None:
        began = self.began + timedelta(minutes=number)
        run = Run(
            thread=self.thread, run_id=f"run-{number}", digest="", agent="echo", user=owner, input="{}", last_seq=2,
            status=Run.Status.FINISHED if self.dice.random() < 0.95 else Run.Status.FAILED, turn="", transport="sse",
            created_at=began, started_at=began, finished_at=began + timedelta(seconds=20), heartbeat=began,
            duration_ms=20_000, input_tokens=400, output_tokens=900,
        )  # fmt: skip
        run.turn = run.uuid.hex
        self.rows[Run].append(run)
        ids = {"threadId": self.thread.thread_id, "runId": run.run_id}
        log = "\n".join(encode({"type": kind, **ids}) for kind in ("RUN_STARTED", "RUN_FINISHED"))
        self.rows[RunEvents].append(RunEvents(run=run, first_seq=1, last_seq=2, text=log))
        state = {"step": number}
        self.thread.state, self.thread.state_version = encode(state), len(self.rows[StateVersion]) + 1
        version = StateVersion(
            thread=self.thread, run=run, version=self.thread.state_version, state=encode(state),
            digest=state_digest(state), origin=StateVersion.Origin.AGENT, created_at=began + timedelta(seconds=20),
        )  # fmt: skip
        self.rows[StateVersion].append(version)

    def message(self, owner: Any, number: int) -> None:
        role = "assistant" if number % 2 else "user"
        text = self.text(self.dice.randrange(5, 60))
        message = Message(
            thread=self.thread, message_id=f"m{number}", role=role, order=(number + 1) * STEP, search_text=text,
            wire=encode({"id": f"m{number}", "role": role, "content": text}), run=self.rows[Run][-1],
            created_at=self.began + timedelta(minutes=number),
        )  # fmt: skip
        self.rows[Message].append(message)
        if number % 2 and self.dice.random() < 0.01:
            rating = self.dice.choice([Feedback.Rating.UP, Feedback.Rating.DOWN])
            self.rows[Feedback].append(Feedback(thread=self.thread, message=message, user=owner, rating=rating))

    def ask(self) -> None:
        run, wire = self.rows[Run][-1], {"id": "q1", "reason": "confirmation", "message": self.text(6)}
        run.status, run.open_interrupts = Run.Status.INTERRUPTED, 1
        question = Interrupt(
            thread=self.thread, run=run, interrupt_id="q1", key="q1", reason="confirmation", message=wire["message"],
            wire=encode(wire),
        )  # fmt: skip
        self.rows[Interrupt].append(question)
