"""Every error that Octavo raises on purpose.

    OctavoError
    ├── ConfigError            a keyword, option or environment variable is wrong
    ├── ModelError
    │   ├── ModelNotFoundError     the name leads to no model
    │   ├── ModelFileError         a file is damaged or contradicts itself; names file and field
    │   └── UnsupportedModelError  a sound file that asks for something Octavo does not have
    ├── DownloadError          fetching a model failed; nothing half-written is left behind
    ├── ChatTemplateError      a chat template is wrong, loops, or refuses the messages
    ├── BackendError           a backend cannot be used here, or refuses an input
    ├── EngineError            an engine in a process of its own failed its requests
    │   ├── EngineDiedError        a process ended before its engine was built
    │   ├── EngineDownError        there has been no engine for a while
    │   └── RequestGivenUpError    this request killed the engine, again and again, or the server shuts down
    └── RequestError           one request is invalid; all others go on
        ├── RequestTooLargeError   it could never fit; the message has the numbers
        └── QueueFullError         too many wait already; try again later

A message says what is wrong and what to change. A fault of our own is an ``assert`` instead.
"""


class OctavoError(Exception):
    """Base of all of them."""


class ConfigError(OctavoError, ValueError):
    """A keyword, option or environment variable is wrong."""


class ModelError(OctavoError):
    """Base of what can be wrong with a model."""


class ModelNotFoundError(ModelError):
    """The given name leads to no model."""


class ModelFileError(ModelError):
    """A model file is damaged or contradicts itself.

    Attributes:
        path: the file.
        field: the header field, tensor or key that is wrong.
    """

    def __init__(self, path: object, field: str, problem: str) -> None:
        super().__init__(f"{path}: {field}: {problem}")
        self.path = path
        self.field = field


class UnsupportedModelError(ModelError):
    """The file is sound, but asks for something that Octavo does not have."""


class DownloadError(OctavoError):
    """Fetching a model failed."""


class ChatTemplateError(OctavoError):
    """A chat template is wrong, takes too long, or refuses the messages."""


class BackendError(OctavoError):
    """A backend cannot be used on this machine, or refuses an input."""


class EngineError(OctavoError):
    """Base of what can be wrong with an engine in a process of its own."""


class EngineDiedError(EngineError):
    """A process ended before its engine was built."""


class EngineDownError(EngineError):
    """There is no engine now, and there has not been one for a while."""


class RequestGivenUpError(EngineError):
    """The engine could not finish a request, through no fault of its caller."""


class RequestError(OctavoError, ValueError):
    """One request is invalid."""


class RequestTooLargeError(RequestError):
    """The request could never fit, whatever else is running."""


class QueueFullError(RequestError):
    """Too many requests wait already."""
