"""What is accounted for: models, optimizers, data, training, checkpoints, in plain PyTorch to be read."""

from cs336kit.build.autograd import Scalar as Scalar
from cs336kit.build.clipping import clip_gradients as clip_gradients
from cs336kit.build.schedule import cosine_schedule as cosine_schedule
