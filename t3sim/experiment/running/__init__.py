"""From points to results: phases, workers, resumed runs, result folders."""
