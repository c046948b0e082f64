"""Thread pools, memory budgets, task processes and long polling for all features."""
