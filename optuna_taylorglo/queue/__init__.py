"""Who does which trial next, and what becomes of those that are lost."""
