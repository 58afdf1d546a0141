"""Settings of a run: dataclasses, the checks across them, Hydra, and the stored config.yaml. Imports no torch."""
