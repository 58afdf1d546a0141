"""A search over repair orders while one run trains."""
