"""uvicorn connections with limits on request heads and time, and with fair turns."""
