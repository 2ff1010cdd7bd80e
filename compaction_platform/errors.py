"""Errors a person can act on: each message says what happened, what is safe, and what to do."""


class CompactionError(Exception):
    """Base of the errors whose message is meant for the user; the command line prints it without a traceback."""


class VerificationFailed(CompactionError):
    """What was written is not what was read. It was not published, and nothing was removed."""
