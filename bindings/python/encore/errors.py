# SPDX-License-Identifier: Apache-2.0
"""What the library raises: one class for each kind of error."""


class Error(RuntimeError):
    """The base. `code` is the status of the C API, `where` the place in the library's source that found it."""

    code = 0

    def __init__(self, sentence: str, where: str = "") -> None:
        super().__init__(sentence)
        self.where = where


class UsageError(Error):
    """An argument that cannot be, or a call at the wrong time."""

    code = 1


class ConfigurationError(Error, ValueError):
    """A key, a value or a shape that is not allowed."""

    code = 2


class InputFileError(Error):
    """A file or a batch that is missing, truncated or lies about itself."""

    code = 3


class OutputFileError(Error):
    """A file that cannot be written; what stood there before is untouched."""

    code = 4


class DeviceError(Error):
    """No such device, or it reported a failure."""

    code = 5


class OutOfMemoryError(Error, MemoryError):
    """Host or device memory, or a stated limit, does not suffice."""

    code = 6


class CaptureError(Error):
    """Something cannot be recorded, or could not be."""

    code = 7


class ReplayContractError(Error):
    """A replay was asked for with something that differs from what was recorded."""

    code = 8


class CommunicationError(Error):
    """A rank of a group is gone, is late, or does something else than the others."""

    code = 9


class ValidationError(Error):
    """A result differs from its reference."""

    code = 10


class InternalError(Error):
    """A defect of the library."""

    code = 11


_classes = {kind.code: kind for kind in Error.__subclasses__()}


def make(code: int, sentence: str, where: str) -> Error:
    """The exception for a status of the C API."""
    return _classes.get(code, InternalError)(sentence, where)
