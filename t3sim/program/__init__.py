"""What the GPUs of a strategy run, as data: programs, plans of programs, and checks of both before anything runs."""
