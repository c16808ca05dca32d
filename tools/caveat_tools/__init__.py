"""Search tools that fail honestly: outcomes, sources, recovery, faults. Knows nothing of the agent."""
