"""Exercise 02.5: a causal mask."""

import torch

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def causal_mask(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


EXERCISE = Exercise(
    id="02.5",
    reference=causal_mask,
    cases=lambda: [Case((4, 4)), Case((2, 5)), Case((1, 3)), Case((6, 6))],
    mistakes=(
        Mistake(
            lambda q, k: ~causal_mask(q, k),
            "Your mask is True where the query must not look: for {case} it is the opposite of what is asked. That is "
            "what masked_fill takes; here True allows.",
        ),
        Mistake(
            lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(k - q - 1),
            "A query cannot see itself: for {case} the diagonal is missing, and softmax over the first row of a square "
            "mask would be 0/0.",
        ),
        Mistake(
            lambda q, k: torch.ones(q, k, dtype=torch.bool).triu(k - q),
            "Rows and columns are swapped: for {case} every query sees the future. Rows are queries, and row 0 sees "
            "the fewest keys.",
        ),
        Mistake(
            lambda q, k: torch.ones(q, k, dtype=torch.bool),
            "Nothing is hidden: for {case} every query may look everywhere, the future included.",
        ),
        Mistake(
            lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(q - k),
            "The shift goes the wrong way: for {case} even the past is hidden. With more keys than queries the diagonal "
            "moves right, and tril's argument is positive.",
        ),
        Mistake(
            lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(),
            "The corner is wrong when there are more keys than queries: for {case} the last query should see all keys. "
            "The first keys − queries keys are the past.",
        ),
    ),
    hints=(
        "Row i is a query, column j a key. The last query stands at the last key. Which keys may it see?",
        "Query i stands at position i + keys − queries and may see every key j up to there, itself included.",
        "return torch.ones(queries, keys, dtype=torch.bool).tril(___)",
    ),
    checked="square masks, a row of one query, and fewer queries than keys (as with a cache).",
)
