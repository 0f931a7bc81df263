"""Six optimizers, each one update rule, equal to torch.optim's to the last bit."""

from cs336kit.lm.optimizers.adagrad import AdaGrad
from cs336kit.lm.optimizers.adam import Adam, AdamW
from cs336kit.lm.optimizers.base import Optimizer
from cs336kit.lm.optimizers.rmsprop import RMSProp
from cs336kit.lm.optimizers.sgd import SGD, Momentum

__all__ = ["SGD", "AdaGrad", "Adam", "AdamW", "Momentum", "Optimizer", "RMSProp"]
