"""Other people's simulators as `TensorVecEnv`, by env.backend=device and env.simulator."""
