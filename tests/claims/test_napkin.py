"""Claims about days of training and the largest model: work, peaks, bytes per parameter."""

import torch
from claims.settled import figures, settles

from cs336kit import measure, predict

H100 = predict.accelerator("h100-sxm")
DAY = 24 * 60 * 60


def adamw_step(size=1000):
    """A parameter of so many elements after one step of torch's AdamW, and its state."""
    weight = torch.nn.Parameter(torch.ones(size))
    optimizer = torch.optim.AdamW([weight])
    weight.square().sum().backward()
    optimizer.step()
    return weight, optimizer.state[weight]


def bytes_per_parameter(size=1000):
    weight, state = adamw_step(size)
    moments = [tensor for tensor in state.values() if tensor.shape == weight.shape]
    return measure.storage_bytes(weight, weight.grad, moments) / size


@settles("napkin-6nd-70b-15t")
def test_6nd_70b_15t():
    return 6.3e24, float(predict.six_nd(70e9, tokens=15e12))


@settles("napkin-h100-dense-is-half-of-1979")
def test_h100_dense_is_half_of_1979():
    sparse = H100.peak("bf16", sparse=True)
    return (1979e12, 0.5), (figures(sparse, 4), figures(H100.peak("bf16") / sparse, 3))


@settles("napkin-flops-per-day-expression")
def test_flops_per_day_expression():
    return 4.377e22, figures(1979e12 * 0.5 * 1024 * 86400, 4)


@settles("napkin-144-days")
def test_144_days():
    run = {"tokens": 15e12, "accelerators": 1024, "peak_flops_per_second": H100.peak("bf16"), "mfu": 0.5}
    return 143.9, round(predict.training_days(70e9, **run), 1)


@settles("napkin-144-days-in-months")
def test_144_days_in_months():
    return 4.8, round(144 / (365.25 / 12), 1)


@settles("napkin-time-formula")
def test_time_formula():
    # Counted the other way around: the run delivers, over the days that the formula gives, exactly the work needed.
    needed, gpus, mfu = 6.3e24, 1024, 0.5
    days = needed / (H100.peak("bf16") * mfu * gpus * DAY)
    delivered = predict.delivered_flops(gpus, peak_flops_per_second=H100.peak("bf16"), days=days, mfu=mfu)
    return needed, figures(delivered, 12)


@settles("napkin-8h100-40b")
def test_8h100_40b():
    room = {"memory_bytes": H100.memory_label_bytes, "bytes_per_parameter": bytes_per_parameter()}
    sharded, replicated = (predict.largest_model(8, **room, sharded=sharded) for sharded in (True, False))
    return 40 * 10**9, sharded, replicated


@settles("napkin-16-bytes-adamw")
def test_16_bytes_adamw():
    return 4.0 + 4 + 8, bytes_per_parameter()


@settles("napkin-two-momentum-states")
def test_two_momentum_states():
    # From zero, one step with a gradient g leaves a momentum at (1 − β)·g. A second state of the same kind would be
    # linear in g too: twice the gradient, twice the state.
    def states(scale):
        weight = torch.nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.AdamW([weight])
        weight.grad = scale * torch.tensor([1.0, 2.0, 4.0])
        optimizer.step()
        return optimizer.state[weight]

    once, twice = states(1), states(2)
    growth = tuple(round((twice[name] / once[name]).mean().item(), 4) for name in ("exp_avg", "exp_avg_sq"))
    return (2.0, 2.0), growth


@settles("napkin-largest-model-is-memory-over-bytes")
def test_largest_model_is_memory_over_bytes():
    total, each = 8 * H100.memory_label_bytes, predict.bytes_per_parameter("adamw", precision="fp32").total
    room = {"memory_bytes": H100.memory_label_bytes, "bytes_per_parameter": each}
    sharded, replicated = (predict.largest_model(8, **room, sharded=sharded) for sharded in (True, False))
    return total // each, sharded, replicated


@settles("napkin-8h100-two-weeks")
def test_8h100_two_weeks():
    return 4.788e21, figures(predict.delivered_flops(8, peak_flops_per_second=1979e12 / 2, days=14), 4)


@settles("napkin-8h100-week-1e21")
def test_8h100_week_1e21():
    # To one digit, which is what "about 1e21" promises, at the MFU of a good run.
    return 1e21, figures(predict.delivered_flops(8, peak_flops_per_second=H100.peak("bf16"), days=7, mfu=0.5), 1)


@settles("napkin-8h100-week-vs-major-budget")
def test_8h100_week_vs_major_budget():
    week = predict.delivered_flops(8, peak_flops_per_second=H100.peak("bf16"), days=7)
    gpt3 = predict.six_nd(175e9, tokens=300e9)
    return "same power of ten", "same power of ten" if 0.1 < week / gpt3 < 10 else f"{gpt3 / week:.0f} weeks"


@settles("napkin-h100-80gb")
def test_h100_80gb():
    labels = {a.name: a.memory_label_bytes for a in predict.accelerators() if a.name.startswith("h100")}
    return 80e9, float(labels["h100-sxm"]), float(labels["h100-nvl"])
