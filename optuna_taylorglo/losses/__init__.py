"""How θ becomes a function: the expansion, what it means, and the loss that PyTorch trains with."""
