"""The engine room: stores, records, executes and follows runs."""
