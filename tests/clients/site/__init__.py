"""The demo site plus the agents that the client stories need; see `settings` and `agents`."""
