"""The prompts, one file a role."""
