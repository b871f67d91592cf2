"""The one exception that is meant for the person at the keyboard."""


class UserError(ValueError):
    """Bad input, said in one sentence that also says what to do.

    The command line prints it and exits with status 2; a page shows it in place of a result.
    """
