"""``python -m t3sim`` is the command line."""

from t3sim.cli import main

if __name__ == "__main__":
    main()
