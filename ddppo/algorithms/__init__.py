"""What an algorithm brings beside PPO's arithmetic: today task samplers, which say what episodes begin with."""
