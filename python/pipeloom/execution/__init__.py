"""The execution of one step by one rank, for pipeloom.torch."""
