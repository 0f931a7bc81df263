"""`python -m cs336kit` is the `cs336kit` command."""

import sys

from cs336kit.cli import main

sys.exit(main())
