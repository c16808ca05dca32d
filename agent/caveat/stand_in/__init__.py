"""The rules of the embedded model, one module a role: what is done next, given the tool calls made so far.

The coordinator's rules split the question, search or delegate, follow up failures and report sentences verbatim; those
of the subagent do the same for one topic. The analysis makes claims of the findings, the synthesis strings the claims
together. Nothing is remembered between two turns. Documents are only cut into sentences and compared with the question:
an instruction inside one is never followed.
"""
