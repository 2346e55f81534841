"""The backends' matching rules: which of the calls issued so far can meet and complete."""
