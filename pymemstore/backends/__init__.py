"""Language models behind one small protocol: transformers, OpenAI-compatible servers, vLLM.

Each module imports its packages when it is imported, never before: the core works without them.
"""

from .base import (
    AsyncStream,
    Backend,
    Chooser,
    Generation,
    Guide,
    Params,
    Prompt,
    Segment,
    Stream,
    Usage,
)

__all__ = [
    "AsyncStream",
    "Backend",
    "Chooser",
    "Generation",
    "Guide",
    "Params",
    "Prompt",
    "Segment",
    "Stream",
    "Usage",
]
