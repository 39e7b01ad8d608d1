"""The load generator: a process of its own, so that what it costs is not the server's."""
