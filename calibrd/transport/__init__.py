"""Transport of calls to the service: connection, responses, retries and errors."""
