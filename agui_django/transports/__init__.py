"""Faces of the log: each frames the same events for one kind of client."""
