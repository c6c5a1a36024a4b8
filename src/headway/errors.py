"""Every error Headway raises on purpose. Each message tells the person what to do next.

HeadwayError
├── ConfigError                 a setting is wrong, or settings contradict each other
├── ModelError                  something about a model on disk or on its way there
│   ├── ModelNotFound           no such path, catalogue name or hub repository
│   ├── CheckpointError         a file is truncated, hostile, incomplete or has tensors nobody asked for
│   ├── UnsupportedModel        a sound file of an architecture, format or tokenizer we do not know
│   ├── DigestMismatch          the bytes are not the ones that were pinned
│   ├── LicenceNotAccepted      the licence must be read and accepted first
│   └── DownloadError           the network, the registry or the disk said no
├── RequestError                the caller's request is wrong; nothing was computed
│   ├── InvalidRequest          a field has a bad value (``param`` names it)
│   ├── PromptTooLong           the prompt does not fit the context (numbers included)
│   └── TemplateError           the chat template refused these messages
├── RequestRefused              admission said no; ``refusal`` carries the numbers
├── EngineError
│   ├── RequestFailed           one request failed while it ran; the others go on
│   └── EngineStopped           the engine is shutting down or has died
└── BenchError                  a measurement could not be made
"""

from typing import Any


class HeadwayError(Exception):
    """Base of all errors below."""


class ConfigError(HeadwayError):
    pass


class ModelError(HeadwayError):
    pass


class ModelNotFound(ModelError):
    pass


class CheckpointError(ModelError):
    pass


class UnsupportedModel(ModelError):
    pass


class DigestMismatch(ModelError):
    pass


class LicenceNotAccepted(ModelError):
    pass


class DownloadError(ModelError):
    pass


class RequestError(HeadwayError):
    """The request is wrong. ``param`` names the field, ``code`` is a stable machine-readable word."""

    default_code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code


class InvalidRequest(RequestError):
    default_code = "invalid_value"


class PromptTooLong(RequestError):
    default_code = "context_length_exceeded"


class TemplateError(RequestError):
    default_code = "template_error"


class RequestRefused(HeadwayError):
    """Admission refused the request. ``refusal`` is a ``headway.core.admission.Refusal``."""

    def __init__(self, refusal: Any) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class EngineError(HeadwayError):
    pass


class RequestFailed(EngineError):
    pass


class EngineStopped(EngineError):
    pass


class BenchError(HeadwayError):
    pass
