"""The instruments: FLOPs, bytes, seconds, bits, storages, graphs."""

from cs336kit.measure.bits import Bits as Bits
from cs336kit.measure.bits import all_values as all_values
from cs336kit.measure.bits import bits as bits
from cs336kit.measure.bits import finite_values as finite_values
from cs336kit.measure.device import device as device
from cs336kit.measure.flops import flops as flops
from cs336kit.measure.graph import graph as graph
from cs336kit.measure.rounding import rounded as rounded
from cs336kit.measure.state_bytes import state_bytes as state_bytes
from cs336kit.measure.storage import Layout as Layout
from cs336kit.measure.storage import layout as layout
from cs336kit.measure.storage import same_storage as same_storage
from cs336kit.measure.storage import storage_bytes as storage_bytes
from cs336kit.measure.storage import view_or_copy as view_or_copy
