"""Questions about training: how long, and does it fit."""
