"""What users think of messages: a thumb and a text, one opinion per user and message.

Law: an opinion stays with its message, in play or not, and goes with it.
"""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from agui_django.models import Feedback, Message, Thread
from agui_django.protocol.codec import clean_text
from agui_django.protocol.errors import InvalidInput, NotAuthenticated, NotFound
from agui_django.runs.database import database_alias, get_pool, transact

#: Characters of a feedback's text.
LONGEST = 4_000


def give_feedback(message: Message, user: Any, rating: int, text: str = "") -> Feedback:
    """Store what a user thinks of a message; it replaces what they thought before. In a database thread.

    Args:
        message: the message.
        user: whose opinion it is.
        rating: 1, -1, or 0 for a text without a thumb.
        text: at most 4,000 characters.

    Raises:
        InvalidInput: no such rating, too long a text, or neither thumb nor text.
        NotAuthenticated: nobody in particular has no opinion.
        NotFound: the message is gone.
    """
    if getattr(user, "pk", None) is None:
        raise NotAuthenticated
    wrong = []
    if isinstance(rating, bool) or rating not in Feedback.Rating.values:
        wrong.append({"path": "/rating", "message": f"must be one of {', '.join(map(str, Feedback.Rating.values))}"})
    if not isinstance(text, str) or len(text) > LONGEST:
        wrong.append({"path": "/text", "message": f"must be a text of at most {LONGEST} characters"})
    elif not wrong and not rating and not text.strip():
        wrong.append({"path": "/rating", "message": "must be a thumb where there is no text"})
    if wrong:
        raise InvalidInput(fields=wrong)
    return transact(_give, message.pk, user.pk, int(rating), clean_text(text).strip())


def take_back(message: Message, user: Any) -> bool:
    """Delete what a user thought of a message; False where there was nothing. In a database thread."""
    opinions = Feedback.objects.using(database_alias()).filter(message=message.pk, user=getattr(user, "pk", None))
    return bool(transact(opinions.exclude(user=None).delete)[0])


def feedback_on(thread: Thread) -> QuerySet[Feedback]:
    """What was thought of a thread's messages, in the order of the messages."""
    found = Feedback.objects.using(database_alias()).filter(thread=thread)
    return found.select_related("message", "user").order_by("message__order", "message", "created_at", "pk")


async def agive_feedback(message: Message, user: Any, rating: int, text: str = "") -> Feedback:
    """`give_feedback`, from any event loop."""
    return await get_pool().run(give_feedback, message, user, rating, text)


async def atake_back(message: Message, user: Any) -> bool:
    """`take_back`, from any event loop."""
    return await get_pool().run(take_back, message, user)


def _give(message: int, user: Any, rating: int, text: str) -> Feedback:
    alias = database_alias()
    # Looked up here: when the message has gone meanwhile the insert fails, this is tried again, and says so.
    thread = Message.objects.using(alias).filter(pk=message).values_list("thread", flat=True).first()
    if thread is None:
        raise NotFound
    values = {"rating": rating, "text": text, "updated_at": timezone.now()}
    feedback, _ = Feedback.objects.using(alias).update_or_create(
        values, {**values, "thread_id": thread}, message_id=message, user_id=user
    )
    return feedback
