"""Numbers in, numbers out: every formula of the course, on the standard library alone."""

from cs336kit.predict.accelerators import Accelerator as Accelerator
from cs336kit.predict.accelerators import accelerator as accelerator
from cs336kit.predict.accelerators import accelerators as accelerators
from cs336kit.predict.block_formats import BlockFormat as BlockFormat
from cs336kit.predict.breakdown import Breakdown as Breakdown
from cs336kit.predict.formats import FORMATS as FORMATS
from cs336kit.predict.models import MODELS as MODELS
from cs336kit.predict.models import model as model
from cs336kit.predict.napkin import bytes_per_parameter as bytes_per_parameter
from cs336kit.predict.napkin import delivered_flops as delivered_flops
from cs336kit.predict.napkin import largest_model as largest_model
from cs336kit.predict.napkin import matmul_flops as matmul_flops
from cs336kit.predict.napkin import six_pn_flops as six_pn_flops
from cs336kit.predict.napkin import training_days as training_days
from cs336kit.predict.number_format import NumberFormat as NumberFormat
from cs336kit.predict.parameters import active_parameters as active_parameters
from cs336kit.predict.parameters import matmul_parameters as matmul_parameters
from cs336kit.predict.parameters import parameters as parameters
from cs336kit.predict.strides import contiguous_strides as contiguous_strides
from cs336kit.predict.strides import element_index as element_index
from cs336kit.predict.strides import element_offset as element_offset
from cs336kit.predict.strides import expanded_strides as expanded_strides
from cs336kit.predict.strides import extent as extent
from cs336kit.predict.strides import overlaps as overlaps
from cs336kit.predict.strides import view_strides as view_strides
from cs336kit.predict.transformer import TransformerConfig as TransformerConfig
