"""Exercises of lesson 02: rounding."""

import math

import torch

from cs336kit.teach.exercises.core import exercise


@exercise(
    "02.1",
    cases={
        "a cent in bf16 (step=0.01, fraction_bits=7)": (0.01, 7),
        "a cent in fp32 (step=0.01, fraction_bits=23)": (0.01, 23),
        "a step of one half in bf16 (step=0.5, fraction_bits=7)": (0.5, 7),
        "a tiny step in E4M3 (step=0.0001, fraction_bits=3)": (0.0001, 3),
        "a cent with 40 fraction bits (step=0.01, fraction_bits=40)": (0.01, 40),
        "three in fp16 (step=3.0, fraction_bits=10)": (3.0, 10),
        "a quarter in fp16 (step=0.25, fraction_bits=10)": (0.25, 10),
    },
    mistakes={
        "right_if(step=step / 2)": "at that sum the step is still more than half a gap, so the sum rounds up by a whole gap.",
        "right_if(step=step * 1.01) if step == 2.0 ** round(math.log2(step)) else right": "the sum stops one power of two "
        "earlier: the step is exactly half a gap there, and a tie goes to the even neighbor, which is the power of two.",
        "right_if(fraction_bits=fraction_bits + 1)": "one bit too many: the leading 1 is not one of the fraction bits.",
        "step * 2 ** (fraction_bits + 1)": "you let the gap grow with every sum, but gaps change only at powers of two.",
        "max(right, 1.0)": "a small step stops below 1. Powers of two go on downward from there.",
        "2.0 ** (fraction_bits + 1)": "that is where a step of 1 stops. Smaller steps stop earlier.",
    },
    hints=(
        "Compare the step with half a gap. How large is half a gap at 1, at 2, and at 4?",
        "Go from one power of two to the next, up or down, until half a gap there has just reached the step.",
    ),
    checked="cents, a half, a quarter and three in formats from 3 to 40 fraction bits, ties and a stop below 1 among them.",
    avoid=("torch", "numpy"),
)
def stops_at(step, fraction_bits):
    fraction, exponent = math.frexp(step)
    return 2.0 ** (exponent + fraction_bits + 1 - (fraction == 0.5))


def _payments():
    cent = 0.010009765625  # a cent as bf16 has it
    named = {
        "a first cent into an empty account": (0.0, 0.0, cent),
        "a cent into an account of 4": (4.0, 0.0, cent),
        "a cent into an account of 4 that owes you one": (4.0, cent, cent),
        "1 into an account of 256 that owes you 0.5": (256.0, 0.5, 1.0),
        "1 into an account of 256 that owes you -0.5": (256.0, -0.5, 1.0),
        "1 taken from an account of 512 that owes you 3": (512.0, 3.0, -1.0),
        "0.25 into an account of 64 that owes you nothing": (64.0, 0.0, 0.25),
    }
    return {name: tuple(torch.tensor(x, dtype=torch.bfloat16) for x in args) for name, args in named.items()}


def _amounts(result, args):
    account, owed = result
    kept = {str(part.dtype).removeprefix("torch.") for part in (account, owed)}
    return {"account": float(account), "owed": float(owed), "kept in": " and ".join(sorted(kept))}


def _one_after_the_other(account, owed, cent):
    after = account + cent + owed
    return after, cent + owed - (after - account)


def _only_when_lost(account, owed, cent):
    after = account + (cent + owed)
    return (after, cent + owed) if after == account else (after, torch.zeros_like(owed))


@exercise(
    "02.2",
    cases=_payments,
    observe=_amounts,
    mistakes={
        "(account + cent, owed)": "this account swallows the cent without a note. Find out what has arrived.",
        "(account + cent, cent - (account + cent - account))": "you forgot what was owed before.",
        _one_after_the_other: "you paid in the cent and the debt one after the other, and each alone was lost. Let the two meet "
        "first.",
        "(right[0], -right[1])": "your sign is wrong: what has not arrived is owed to you, so it is positive.",
        "(right[0], 0 * right[1])": "what you say is owed is always 0. The sum of account and payment is rounded before you "
        "subtract from it.",
        "(right[0], owed + cent)": "part of that has arrived in the account, so it is no longer owed.",
        _only_when_lost: "even when the account does change, rounding may add to the payment or take from it.",
    },
    hints=(
        "What is due today is more than the cent. How much of it has arrived, when you compare the account before and after?",
        "Subtracting two bf16 numbers that lie close together is exact, so the account itself can tell you what has arrived.",
    ),
    checked="payments that arrive, that are lost, that round up, and one that is taken out, all in bf16.",
    tolerance=0,
    avoid=("float", "double", "float32", "float64", "item", "tolist", "numpy", "Fraction", "fsum", "type", "to"),
)
def deposit(account, owed, cent):
    due = cent + owed
    after = account + due
    return after, due - (after - account)


@exercise(
    "02.3",
    cases={
        "1 + 0.001 in bf16 (fraction_bits=7)": (1.0, 0.001, 7),
        "1 - 0.001 in bf16 (fraction_bits=7)": (1.0, -0.001, 7),
        "1.5 - 0.001 in bf16 (fraction_bits=7)": (1.5, -0.001, 7),
        "0.046875 + 0.00003 in bf16 (fraction_bits=7)": (0.046875, 0.00003, 7),
        "3 + 0.1 in bf16 (fraction_bits=7)": (3.0, 0.1, 7),
        "8 - 0.3 in E4M3 (fraction_bits=3)": (8.0, -0.3, 3),
        "6 + 0.002 in fp16 (fraction_bits=10)": (6.0, 0.002, 10),
        "1 + 0.005 in bf16 (fraction_bits=7)": (1.0, 0.005, 7),
        "1.9921875 + 0.01, which is beyond 2, in bf16 (fraction_bits=7)": (1.9921875, 0.01, 7),
    },
    mistakes={
        "right_if(below=0)": "the weight is a power of two, and the gap below it is half as wide.",
        "right_if(most=math.inf)": "a probability is at most 1: such an update always gets through.",
        "right if update > 0 else -right": "a probability is not negative. Take the size of the update.",
        "min(1.0, abs(update) * 2**fraction_bits)": "you took the gap at 1 for every weight; gaps grow with the weight.",
        "min(1.0, 2 * right)": "half a gap is where rounding to nearest turns. Here the probability is a share of the whole gap.",
        "float(right > 0.5)": "that is rounding to nearest, where an update is lost for certain or not at all.",
    },
    hints=(
        "How far does the weight have to move to reach the next number that exists, in the direction of the update?",
        "The probability is a share of that distance. For which weights is the distance downward not the one upward?",
    ),
    checked="updates up and down, on powers of two and between them, in three formats, and some larger than a gap.",
)
def chance(weight, update, fraction_bits, *, below=1, most=1.0):
    fraction, exponent = math.frexp(weight)
    exponent -= 1 + (below if update < 0 and fraction == 0.5 else 0)
    return min(most, abs(update) / 2.0 ** (exponent - fraction_bits))


@exercise(
    "02.4",
    cases=[
        ([7.9, 3.1, 0.6, 0.2],),
        ([0.3, -0.02, 0.11, 0.7],),
        ([-7.9, 3.1],),
        ([6.0, 1.0],),
        ([3.0, -3.0],),
        ([4.2],),
        ([0.001, 0.0, 0.0013],),
        ([100.0, -390.0],),
    ],
    mistakes={
        "2.0 ** (math.floor(math.log2(max(map(abs, values)))) - 2)": "that is MX's own rule. The largest saturates.",
        "right_if(values=[max(values)])": "a negative number can be the largest in size.",
        "max(map(abs, values)) / 6": "nothing saturates with this scale, but it is not a power of two.",
        "2 * right": "a scale half as large still keeps everything in reach, with a finer grid.",
        "2.0 ** round(math.log2(max(map(abs, values)) / 6))": "the nearest power of two may be too small. Never round down.",
        "2.0 ** (math.floor(math.log2(max(map(abs, values)) / 6)) + 1)": "a largest number that becomes exactly 6 fits. It "
        "does not have to be below.",
        "right_if(values=[6 / 7 * max(map(abs, values))])": "with your scale a number becomes more than 6, the largest of fp4. "
        "Did you count with 7?",
        "right_if(values=[1.5 * max(map(abs, values))])": "fp4 reaches 6, not just 4: some grids are coarser than needed.",
    },
    hints=(
        "Only one number of the block matters. What has to hold for it after the division?",
        "Try blocks whose largest number is 6, 7, 12 and 13. Which scale does each need, and what changes from 12 to 13?",
    ),
    checked="blocks of large and small numbers, with the largest negative, and blocks that just fit.",
)
def safe_scale(values):
    fraction, exponent = math.frexp(max(map(abs, values)) / 6)
    return 2.0 ** (exponent - (fraction == 0.5))


@exercise(
    "02.5",
    mistakes={
        "('A', ...)": "A fits. But near 0.05, half a gap of bf16 is 0.00012, four times the update, so its weights stand still.",
        "('B', ...)": "B learns. Now count its bytes for each weight, including the gradient and the optimizer's numbers.",
        "('C', 14)": "C is right, but that is the weights alone. Each weight has three more numbers beside it.",
        "('C', 28)": "C is right, but there are four numbers for each weight.",
        "('C', 112)": "C is right, but that is what plan B takes. What does C keep in 2 bytes?",
        "('C', 52.15)": "C is right, but that is in GiB. The memory is given in GB.",
    },
    hints=(
        "Two questions for each plan: what is half a gap of the number that is updated, and how many bytes does a weight take?",
        "0.05 lies between 1/32 and 1/16, so you know its exponent; and plan B keeps three of its five numbers in 4 bytes.",
    ),
    checked="C fits with 56 GB and keeps the updates on average. A would stand still, and B would take 112 GB.",
    tolerance=0.01,
)
def plan():
    return "C", 56
