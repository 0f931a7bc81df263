"""What is accounted for: models, optimizers, data, training, checkpoints, in plain PyTorch to be read."""

from cs336kit.build.autograd import Scalar as Scalar
from cs336kit.build.batches import Batches as Batches
from cs336kit.build.batches import get_batch as get_batch
from cs336kit.build.batches import prefetch as prefetch
from cs336kit.build.clipping import clip_gradients as clip_gradients
from cs336kit.build.cruncher import Cruncher as Cruncher
from cs336kit.build.optimizers import AdaGrad as AdaGrad
from cs336kit.build.optimizers import Adam as Adam
from cs336kit.build.optimizers import AdamW as AdamW
from cs336kit.build.optimizers import Momentum as Momentum
from cs336kit.build.optimizers import Optimizer as Optimizer
from cs336kit.build.optimizers import RMSProp as RMSProp
from cs336kit.build.optimizers import SGD as SGD
from cs336kit.build.progress import ProgressBar as ProgressBar
from cs336kit.build.schedule import cosine_schedule as cosine_schedule
from cs336kit.build.seed import seed_everything as seed_everything
from cs336kit.build.text import course_text as course_text
from cs336kit.build.text import decode as decode
from cs336kit.build.text import encode as encode
from cs336kit.build.tokens import TokenFile as TokenFile
from cs336kit.build.tokens import TokenFileError as TokenFileError
from cs336kit.build.tokens import token_dtype as token_dtype
