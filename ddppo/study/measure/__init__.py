"""Measure a study: statistics over seeds, slow ranks, speedup over W, and topologies side by side, in this order."""
