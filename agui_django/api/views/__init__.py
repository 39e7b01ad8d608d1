"""The views of the REST API, one file per thing."""
