"""Six optimizers, each one update rule, equal to torch.optim's to the last bit."""

from cs336kit.build.optimizers.adagrad import AdaGrad
from cs336kit.build.optimizers.adam import Adam, AdamW
from cs336kit.build.optimizers.base import Optimizer
from cs336kit.build.optimizers.rmsprop import RMSProp
from cs336kit.build.optimizers.sgd import SGD, Momentum

__all__ = ["SGD", "AdaGrad", "Adam", "AdamW", "Momentum", "Optimizer", "RMSProp"]
