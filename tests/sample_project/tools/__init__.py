"""What the agent can call."""
