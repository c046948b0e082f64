"""Connections as uvicorn serves them, with limits on heads, time and fairness."""
