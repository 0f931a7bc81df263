"""What belongs to one lesson: its exercises and its figures, and the texts that several show."""
