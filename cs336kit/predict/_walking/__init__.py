"""A walk through a program: what is alive after every operation, on one rank of a layout."""
