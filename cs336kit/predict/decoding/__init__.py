"""Serving a model: bytes of weights and caches, and bounds on the time of a token."""
