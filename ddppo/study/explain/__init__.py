"""Why efficiency is lost, and whether the study succeeded."""
