"""Units that the exercises of lesson 00 share."""

DAY = 86_400  # seconds
