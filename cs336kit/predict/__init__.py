"""Numbers in, numbers out: every formula of the course, on the standard library alone."""

from cs336kit.predict.accelerators import Accelerator as Accelerator
from cs336kit.predict.accelerators import accelerator as accelerator
from cs336kit.predict.accelerators import accelerators as accelerators
from cs336kit.predict.block_formats import BlockFormat as BlockFormat
from cs336kit.predict.breakdown import Breakdown as Breakdown
from cs336kit.predict.formats import FORMATS as FORMATS
from cs336kit.predict.number_format import NumberFormat as NumberFormat
from cs336kit.predict.transformer import TransformerConfig as TransformerConfig
