"""The parts of the planner: a question, its chip, its memory, advice, the answer, its text, and what explains it."""
