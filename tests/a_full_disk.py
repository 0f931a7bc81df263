"""A limit on the size of files stands in for a disk that is full."""

import contextlib


@contextlib.contextmanager
def full_disk(size):
    """In the block this process can write no file beyond that many bytes."""
    import resource  # which Windows lacks

    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
