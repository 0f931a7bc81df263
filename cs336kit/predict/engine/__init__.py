"""One list of operations, and the walk over it."""
