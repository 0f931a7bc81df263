"""Answers for files that the rules do not read: transformers' own modules are counted, by `cs336plan.trace`."""
