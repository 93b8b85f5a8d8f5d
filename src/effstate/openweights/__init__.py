"""ESS of open-weight language models along sentences, code, and questions (sections 5.3, E.5, E.6)."""
