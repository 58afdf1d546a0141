"""A command line as words: a shell's quoting, and nothing else of a shell."""

OPERATORS = set("|&;<>()\n")
NO_SHELL = "there is no shell here: one aws command a line, without pipes, redirections or substitutions"


class CommandError(Exception):
    """A command that came to nothing: what is printed, and the exit status (the AWS CLI's, version 2).

    252: the line could not be read. 254: the service refused. 255: the rest.
    """

    def __init__(self, said: str, status: int = 252, code: str = "") -> None:
        super().__init__(said)
        self.said, self.status, self.code = said, status, code


def words(line: str) -> list[str]:
    """Split a line at blanks, with single quotes, double quotes and backslashes as in sh.

    Raises CommandError where a shell would do more than quote: an operator, a variable, a substitution.
    """
    found: list[str] = []
    word: str | None = None  # None between words, as "" is a word where it was quoted
    quote = ""
    at = 0
    while at < len(line):
        char = line[at]
        if quote == "'":
            word, quote = (word, "") if char == quote else ((word or "") + char, quote)
        elif char in "$`":
            raise CommandError(f"syntax error near `{char}': {NO_SHELL}")
        elif char == "\\":
            at += 1
            after = line[at : at + 1]
            kept = "\\" if quote and after not in ('"', "\\", "$", "`") else ""
            word = (word or "") + kept + after
        elif quote:
            word, quote = (word, "") if char == quote else ((word or "") + char, quote)
        elif char in "'\"":
            word, quote = word or "", char
        elif char in OPERATORS:
            raise CommandError(f"syntax error near {char!r}: {NO_SHELL}")
        elif char in " \t":
            if word is not None:
                found.append(word)
            word = None
        else:
            word = (word or "") + char
        at += 1
    if quote:
        raise CommandError(f"syntax error: the quote {quote} is never closed")
    return found if word is None else [*found, word]
