"""The exceptions of the package."""


class Error(Exception):
    """Partita refused something. The text names the thing, the reason and the remedy."""


class NotInstalled(Error):
    """A part of Partita's installation was not found. The text says where it was looked for."""
