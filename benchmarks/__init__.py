"""Benchmarks: what the package costs beside raw ASGI, bare Django, row-per-event and peers, in one interleaved run."""
