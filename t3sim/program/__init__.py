"""Programs of the GPUs of a strategy as data, plans of programs, and static checks of both."""
