"""What every run has to satisfy, whatever it simulates: these modules read the machine and never change it."""
