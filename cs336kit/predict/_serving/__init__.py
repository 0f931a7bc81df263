"""The parts of `predict.serve`: a question, its bytes, its time, the answer, advice, and the answer's text."""
