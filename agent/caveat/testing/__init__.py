"""Whole agent sessions on cassettes, for tests: recorded once, replayed without a network, a key or a wait.

The pytest plugin (`plugin.py`) is all that most tests need; `docs/cassettes.md` shows how. It works for any agent on
the anthropic SDK.
"""
