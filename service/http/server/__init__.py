"""Connections of uvicorn with limits on heads and time, and fair turns."""
