"""A search over repair orders while one run trains: which order is tried, when its trial ends, what follows."""
