"""A study that many workers share: how it is opened, and how its trials are handed out."""
