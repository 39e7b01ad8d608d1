"""Test doubles for sites: run an agent in memory, script one, check that a stream is legal.

Law: `run_agent` goes through the engine's own driver; only the log is a list, and nothing touches the database.
"""

from __future__ import annotations

from agui_django.runs.memory import MemoryLog
from agui_django.testing.doubles import ScriptedAgent, override_agent
from agui_django.testing.replies import Reply, Script
from agui_django.testing.running import AgentRun, run_agent
from agui_django.testing.streams import assert_valid_run

__all__ = [
    "AgentRun",
    "MemoryLog",
    "Reply",
    "Script",
    "ScriptedAgent",
    "assert_valid_run",
    "override_agent",
    "run_agent",
]
