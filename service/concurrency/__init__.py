"""Thread pools, memory budgets, task processes and long polls, shared by features."""
