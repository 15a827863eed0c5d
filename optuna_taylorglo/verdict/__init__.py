"""Is it really better? Full trainings, opponents and controls, and what they allow to say."""
