"""Before a run's processes start: what is checked, and whether it begins or goes on."""
