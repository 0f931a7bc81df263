"""Resource accounting for language models: predict it, measure it, compare."""
