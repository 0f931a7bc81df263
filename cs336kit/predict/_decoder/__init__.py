"""The decoder-only Transformer as a program: one description of its block, in parts."""
