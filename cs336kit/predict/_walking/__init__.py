"""A walk through a program: what is alive behind every operation, on one rank of a layout."""
