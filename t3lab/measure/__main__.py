"""``python -m t3lab.measure``: measure the GPUs of a node that has only NumPy and CuPy."""

import sys

from t3lab.measure.program import main

sys.exit(main())
