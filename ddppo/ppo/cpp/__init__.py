"""The collector and the learner in C++, and the network that both compute with (ddppo/native/src)."""
