"""The protocol core: pure functions and machines over wire dicts. Knows nothing of Django, asyncio, clocks or I/O."""
