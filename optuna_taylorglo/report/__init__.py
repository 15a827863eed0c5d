"""What people read about a study: one page, and the Optuna dashboard's figures and notes."""
