"""The commands that answer from `predict`: plan, serve, optimal."""
