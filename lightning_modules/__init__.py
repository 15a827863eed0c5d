"""Networks, data and training: what a TaylorGLO candidate is evaluated on."""
