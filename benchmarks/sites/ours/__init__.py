"""agui_django as a site uses it: everything recorded, token authentication on, no middleware beside it."""
