"""Acting and learning in C++ (ddppo/native), seen from the collector and the learner."""
