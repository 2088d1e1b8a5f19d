"""`python -m lldlib`: see `lldlib.cli`."""

import sys

from lldlib.cli import main

if __name__ == "__main__":
    sys.exit(main())
