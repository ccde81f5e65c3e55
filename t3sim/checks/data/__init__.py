"""Real values through the simulated memories: does the machine compute what NumPy computes?

A *carried* run replays on NumPy arrays every DRAM command that the machine issued, in its order, and every granule
that went over a link.  What a read finds is what earlier stores and updates of the run have left there, so a granule
that is lost, repeated, sent early or written elsewhere changes the values.  Which operation an access belongs to
follows from its address and the program alone (``dataflow``); no strategy is known here.

Timing does not depend on any of this: the replay only reads the command log and the messages.

Values are whole numbers, so sums are exact in every order; in addition each carries its value in the element type,
rounded at each store and on each link.  Each granule also carries who contributed how often and what element it is
(``elements``).  With all GPUs simulated, what arrives is what another sent.  In mirrored mode one
GPU represents all: what arrives is what it sends itself, with the values that the GPU there has in its place.
"""

from t3sim.checks.data.carried_program import CarriedProgram

__all__ = ["CarriedProgram"]
