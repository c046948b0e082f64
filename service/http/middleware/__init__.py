"""ASGI middleware: authentication, limits and the request log."""
