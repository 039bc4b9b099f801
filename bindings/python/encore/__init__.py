# SPDX-License-Identifier: Apache-2.0
"""Train a model, or record kernels once and replay them.

    with encore.Runtime() as runtime:
        trainer = encore.Trainer(runtime, encore.Configuration(preset="bytes"))
        trainer.set_batch(ids, labels)
        print(trainer.step().loss)
"""

from ._encore import (
    Configuration,
    Graph,
    Runtime,
    StepResult,
    Stream,
    Trainer,
    __version__,
    backends,
    git_revision,
)
from .errors import (
    CaptureError,
    CommunicationError,
    ConfigurationError,
    DeviceError,
    Error,
    InputFileError,
    InternalError,
    OutOfMemoryError,
    OutputFileError,
    ReplayContractError,
    UsageError,
    ValidationError,
)

__all__ = [
    "CaptureError",
    "CommunicationError",
    "Configuration",
    "ConfigurationError",
    "DeviceError",
    "Error",
    "Graph",
    "InputFileError",
    "InternalError",
    "OutOfMemoryError",
    "OutputFileError",
    "ReplayContractError",
    "Runtime",
    "StepResult",
    "Stream",
    "Trainer",
    "UsageError",
    "ValidationError",
    "__version__",
    "backends",
    "git_revision",
]
