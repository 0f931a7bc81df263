"""Questions about serving: what fits, and how long a token takes."""
