"""Errors of pipeloom.metadata; each message names the remedy."""


class MetadataError(Exception):
    """Reading or writing cannot go on: a missing file, package or right."""


class BrokenFileError(MetadataError):
    """A file, or one member of it, whose sizes cannot be read. `skip_broken`
    leaves such samples out."""

    def __init__(self, file: str, member: str, why: str,
                 remedy: str = "") -> None:
        self.file, self.member, self.why = file, member, why
        self.remedy = remedy or ("replace the file, or leave such samples out "
                                 "with --skip-broken (skip_broken=True)")
        where = f"{file}: {member}" if member else file
        super().__init__(f"{where}: {why}; {self.remedy}")

    def __reduce__(self):  # The default passes the message only.
        return (BrokenFileError,
                (self.file, self.member, self.why, self.remedy))

    def name(self) -> str:
        """Returns file, member and reason in one line, without the remedy."""
        where = f"{self.file}: {self.member}" if self.member else self.file
        return f"{where}: {self.why}"


class Unreadable(Exception):
    """A header that cannot be read. Callers add the names of the file and
    member and raise a BrokenFileError."""

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.why, self.remedy = why, remedy
