"""``python -m optuna_taylorglo.cli``."""

import sys

from optuna_taylorglo.cli import main

if __name__ == "__main__":
    sys.exit(main())
