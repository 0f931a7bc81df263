"""The planner's commands: `plan`, `serve`, `optimal` and `models`."""
