"""Which θ comes next, what a candidate is, and what came of it."""
