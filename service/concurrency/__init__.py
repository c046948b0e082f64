"""Thread pools, memory budgets, task processes and long polls for all features."""
