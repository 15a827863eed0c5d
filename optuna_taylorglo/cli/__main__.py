"""``python -m optuna_taylorglo.cli``."""

import sys

from optuna_taylorglo.cli.main import main

sys.exit(main())
