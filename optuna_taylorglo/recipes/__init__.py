"""What a run is: the recipe, where it comes from, and how a study keeps it."""
