"""Limits of the compiled core on machines and GEMM kernels.

The kernel imports nothing of t3sim but itself, and this package lies below it: ``tests/kernel/test_limits.py`` compares
these numbers with the tables and bit fields that they come from.
"""

# A request holds column and bank in bit fields, and its granule inside a wavefront tile.
MOST_ACCESSES_IN_A_ROW = 256
MOST_BANKS_OF_A_CHANNEL = 64
MOST_ACCESSES_IN_A_LINE = 4
MOST_ACCESSES_IN_A_SLOT = 4096  # of the link: free places of the outbox at the start of a slot
# What comes back to a compute unit, which may have slept for 128 issue slots, waits in a ring of 256 of them.
LONGEST_RETURN_SLOTS = 40
LONGEST_QUEUED_RETURN_SLOTS = 100
LONGEST_TRIP_SLOTS = 120
LONGEST_CROSSING_SLOTS = 20
MOST_COMPUTE_UNITS = 4096
MOST_CONTEXTS = 16  # outstanding commands of programs of T3's DMA engine
ROWS_OF_COMMAND = 16  # that one of these moves at a time
MOST_SIMDS = 8  # of a compute unit
MOST_RESIDENT_WORKGROUPS = 4  # of a compute unit: they share its matrix rate
MOST_PREFETCHED_SLICES = 15  # loaded ahead of the one being multiplied
EFFICIENCY_DIGITS = 10_000  # matrix_efficiency is kept to four digits
MOST_BYTES_IN_A_PACKET = 4096
LARGEST_LINK_DENOMINATOR = 1 << 20  # of the time of one access on the link, a fraction of ticks
FINEST_TICKS_HZ = 10**12  # one tick of simulated time is at least a picosecond
EFFICIENCY_SCALE = 10_000  # of `matrix_efficiency`, which is kept to four digits
