"""The commands of `cs336kit`, and how they read numbers, units and lists."""
