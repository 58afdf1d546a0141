"""The rooms behind the door `python -m ddppo.train`: its arguments, complaints, one run, a sweep, torchrun."""
