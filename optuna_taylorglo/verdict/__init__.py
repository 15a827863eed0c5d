"""Is it really better? Full trainings, baselines and controls, and what they allow to say."""
