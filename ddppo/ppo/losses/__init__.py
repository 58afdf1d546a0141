"""What learning minimises: PPO's losses, the divergence from a reference policy, a user's own terms."""
