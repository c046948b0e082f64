"""How calls reach the service: connection, responses, retries and errors."""
