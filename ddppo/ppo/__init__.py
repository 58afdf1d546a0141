"""The PPO arithmetic, ignorant of who steps the environments and who owns the parameters."""
