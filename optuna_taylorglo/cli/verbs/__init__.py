"""The verbs of `taylorglo`: each module adds its parser and says what it does."""
