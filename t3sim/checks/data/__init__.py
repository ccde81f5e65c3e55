"""Real values through the simulated memories: does the machine compute what NumPy computes?

A *carried* run replays on NumPy arrays every DRAM command that the machine issued, in its order, and
every granule that went over a link.  What a read finds is what earlier stores and updates of the run
have left there, so a granule that is lost, repeated, sent early or written elsewhere changes the
values.  Each granule also carries who contributed how often, four bits for each GPU.

Timing does not depend on any of this: the replay only reads the command log and the messages.

Values are whole numbers, so sums are exact in every order.  With all GPUs of a ring simulated, what
arrives is what the neighbour sent.  In mirrored mode one GPU stands for all: what arrives is what the
neighbour has to send, and what the GPU sends must be what its neighbour expects; by symmetry the
whole ring is right if every position is.
"""

from t3sim.checks.data.carried_collective import CarriedCollective
from t3sim.checks.data.carried_gemm import CarriedGemm
from t3sim.checks.data.carried_run import CarriedRun

__all__ = ["CarriedCollective", "CarriedGemm", "CarriedRun"]
