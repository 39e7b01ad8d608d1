"""The demo site: it shows what the app does, and the tests run on it."""
