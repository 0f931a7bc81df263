"""Settings for all unit tests."""

from hypothesis import settings

# The same examples in every run, and no deadline: a slow machine is not a wrong answer.
settings.register_profile("course", deadline=None, derandomize=True)
settings.load_profile("course")
