"""Numbers in, numbers out: every formula of the course, on the standard library alone."""

from cs336kit.predict.breakdown import Breakdown as Breakdown
from cs336kit.predict.transformer import TransformerConfig as TransformerConfig
