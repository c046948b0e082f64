"""Access control: API keys, dashboard sessions, workspaces and scopes."""
