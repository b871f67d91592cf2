"""`python -m bastion`."""

import sys

from bastion.cli import main

if __name__ == "__main__":
    sys.exit(main())
