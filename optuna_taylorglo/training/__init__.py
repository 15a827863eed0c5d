"""A recipe and a loss to a metric, on this machine."""
