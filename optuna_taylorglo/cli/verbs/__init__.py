"""One file for each verb of ``taylorglo``."""
