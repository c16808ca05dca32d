"""caveat: a research agent that says what it could not find out."""
