"""GLO's search: genetic programming over trees, then CMA-ES over the best one's coefficients."""
