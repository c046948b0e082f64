"""Who may call: API keys, dashboard sessions, workspaces and scopes."""
