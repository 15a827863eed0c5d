"""Where studies are kept, and waiting for it: URLs, databases, journals, outages, locks."""
