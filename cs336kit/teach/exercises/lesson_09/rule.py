"""The update rule that exercises of lesson 09 are checked against."""

import math


def update(
    p,
    gradients,
    lr,
    betas,
    eps,
    weight_decay=0.0,
    *,
    correct=(True, True),
    power=True,
    inside=False,
    root=True,
    outside=False,
    sums=False,
    decay="w",
):
    """AdamW on one number, with a switch for each way to get it wrong."""
    beta1, beta2 = betas
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        before = p
        if decay == "l2":
            g = g + weight_decay * p
        elif decay == "w":
            p = p * (1 - lr * weight_decay)
        elif decay == "without lr":
            p = p * (1 - weight_decay)
        m = beta1 * m + (1 if sums else 1 - beta1) * g
        v = beta2 * v + (1 if sums else 1 - beta2) * g * g
        t = t if power else 1
        m_hat = m / (1 - beta1**t) if correct[0] else m
        v_hat = v / (1 - beta2**t) if correct[1] else v
        scale = math.sqrt(v_hat + eps) if inside else (math.sqrt(v_hat) if root else v_hat) + eps
        if outside:
            scale = (math.sqrt(v) + eps) / math.sqrt(1 - beta2**t)
        p = p - lr * m_hat / scale
        if decay == "grows":
            p = p + lr * weight_decay * before
        elif decay == "after":
            p = p * (1 - lr * weight_decay)
    return p
