"""What can complete: which of the calls issued so far can meet, by the backend's matching rule."""
