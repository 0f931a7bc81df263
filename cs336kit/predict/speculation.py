"""Speculative decoding: tokens per pass of the target, and the speedup. Source: Leviathan et al. 2023, section 3."""

from cs336kit.predict.checks import finite_results, fraction, non_negative_number, steps


def speculative_tokens(*, acceptance: float, guesses: int) -> float:
    """Tokens that one pass of the target adds on average: (1 − α^(k+1)) / (1 − α), with α = `acceptance`, k = `guesses`.

    Each guess is taken to be accepted with probability α, independently of the others; after the first that is rejected, or
    after the last, comes one token of the target's own. At α = 1 that is k + 1. Source: equation 1.
    """
    alpha, k = fraction("acceptance", acceptance, zero=True), steps("guesses", guesses)
    return float(sum(alpha**i for i in range(k + 1)))


@finite_results()
def speculative_speedup(*, acceptance: float, guesses: int, cost_ratio: float) -> float:
    """How many times faster a text is generated: `speculative_tokens` / (k·c + 1), with c = `cost_ratio`; below 1, it is slower.

    `cost_ratio`: seconds of one pass of the draft per second of one pass of the target. The target is taken to read k + 1
    tokens in the time of one, which holds while its weights and cache take longer to read than it computes.
    Source: theorem 3.8.
    """
    k, ratio = steps("guesses", guesses), non_negative_number("cost_ratio", cost_ratio)
    return speculative_tokens(acceptance=acceptance, guesses=k) / (k * ratio + 1)
