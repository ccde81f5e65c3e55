"""``python -m t3sim.measure``: measure the GPUs of a node that has only NumPy and CuPy."""

import sys

from t3sim.measure.program import main

sys.exit(main())
