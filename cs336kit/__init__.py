"""Resource accounting for language models: predict it, measure it, compare."""

__version__ = "0.2.dev0"
