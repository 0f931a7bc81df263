"""`python -m cs336kit` is the `cs336kit` command."""

import sys

# Before anything is imported that an older Python cannot even read.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit("cs336kit needs Python 3.11 or newer, and this is %d.%d." % sys.version_info[:2])  # noqa: UP031

from cs336kit.command import main

sys.exit(main())
