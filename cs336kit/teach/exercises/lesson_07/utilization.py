"""Exercise 07.6: from MFU to HFU."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def hardware_utilization(mfu, forward, recomputed):
    return mfu * (3 * forward + recomputed) / (3 * forward)


EXERCISE = Exercise(
    id="07.6",
    reference=hardware_utilization,
    cases=lambda: [
        Case((0.45, 291_648_307_200, 144_955_146_240), label="MFU 0.45, half of forward computed again"),
        Case((0.5, 1000, 1000), label="MFU 0.5, all of forward computed again"),
        Case((0.3, 1000, 0), label="MFU 0.3, nothing computed again"),
        Case((0.38, 7e15, 5.1e15), label="MFU 0.38, 7e15 and 5.1e15 FLOPs"),
    ],
    mistakes=(
        Mistake(
            lambda u, f, r: u * 4 / 3,
            "For {case} you returned {given}: 4/3 is the rule for a whole forward pass again. Use the recomputed FLOPs that "
            "are given.",
        ),
        Mistake(
            lambda u, f, r: u * 3 * f / (3 * f + r),
            "For {case} you returned {given}, less than the MFU. The hardware executes more than the model needs, so HFU is "
            "the larger one.",
        ),
        Mistake(
            lambda u, f, r: u * (f + r) / f,
            "For {case} you returned {given}: you set the repeated FLOPs against forward alone. A step is forward and "
            "backward, three times forward.",
        ),
        Mistake(
            lambda u, f, r: u,
            "For {case} you returned the MFU itself. HFU also counts what is computed again.",
        ),
        Mistake(
            lambda u, f, r: u * (3 * f + r) / (2 * f),
            "For {case} you returned {given}: backward alone is 2 times forward; the step is 3 times forward.",
        ),
        Mistake(
            lambda u, f, r: u * (2 * f + r) / (2 * f),
            "For {case} you returned {given}: you set the repeated FLOPs against backward alone. A step has forward too.",
        ),
        Mistake(
            lambda u, f, r: u * (6 * f + r) / (6 * f),
            "For {case} you returned {given}: 6 is in units of NP, and forward is 2NP already. A step is 3 times forward.",
        ),
        Mistake(
            lambda u, f, r: u + r / (3 * f),
            "For {case} you returned {given}: you added a share of FLOPs to a utilization. Scale the MFU by executed ÷ needed.",
        ),
    ),
    hints=(
        "The time and the peak are the same for both. What differs?",
        "HFU / MFU = FLOPs executed / FLOPs of the model.",
        "The model needs 3·forward; the hardware executes 3·forward + ….",
    ),
    checked="four steps, with nothing, a part and all of forward computed again.",
)
