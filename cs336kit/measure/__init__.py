"""The instruments: FLOPs, bytes, seconds, bits, storages, graphs."""

from cs336kit.measure.device import device as device
