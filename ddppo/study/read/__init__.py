"""From files that anybody may have written to runs and studies: every value is checked here."""
