"""Models behind an OpenAI-compatible completions endpoint: vLLM, `transformers serve`, others. Needs httpx.

What each server does differently (special tokens and stop strings above all) is evened out or refused;
docs/servers.md has the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import random
import threading
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx

from ..errors import (
    BackendTimeout,
    BackendUnavailable,
    BadResponse,
    InvalidArgument,
    MemstoreError,
)
from ._completion import Completion, EventReader, ServerGeneration
from ._servers import ServerKind, capabilities, completion_request, refused, tokenizer_probe
from ._servertokens import ServerTokens
from .base import Generation, Params, Prompt

__all__ = ["AsyncCompletionStream", "CompletionStream", "OpenAIBackend", "ServerGeneration", "ServerKind"]

_RETRIED = frozenset({429, 502, 503, 504})
# Nothing of an answer has come when sending raises one of these.
_NO_ANSWER = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.ReadError,
    httpx.RemoteProtocolError,
    httpx.WriteError,
)
_LONGEST_WAIT = 60.0  # seconds between two tries, whatever Retry-After says


class OpenAIBackend:
    """A model that a server runs, by its `/v1/completions`. For several threads and event loops at a time.

    Every request is streamed: so the timeout is of silence and not of a whole generation, and an error comes
    with the text so far. A request is sent again only while nothing of an answer has come: when no connection
    came about or it broke at once, and after status 429, 502, 503 and 504 (waiting as Retry-After says, a
    minute at most).

    base_url: `http://host:8000` or `http://host:8000/v1`. model: its name on the server. tokenizer: the
    transformers tokenizer of the served model, a fast one; with it prompts go to vLLM as ids, and a stop
    string that the server would strip is found out. server: what runs there; "auto": asked on first use.
    timeout: seconds of silence; connect_timeout: seconds. retries: tries after the first. concurrency: how
    many requests a `generate` or `agenerate` has under way. client: options of `httpx.Client` and
    `httpx.AsyncClient` alike (verify, headers, trust_env, ...).
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        tokenizer: Any = None,
        server: Literal["auto"] | ServerKind = "auto",
        timeout: float = 60.0,
        connect_timeout: float = 10.0,
        retries: int = 3,
        concurrency: int = 32,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        if server not in ("auto", "vllm", "transformers", "generic"):
            raise InvalidArgument(f"server: expected auto, vllm, transformers or generic, not {server!r:.40}")
        if not (timeout > 0 and connect_timeout > 0 and retries >= 0 and concurrency >= 1):
            raise InvalidArgument("expected timeout > 0, connect_timeout > 0, retries >= 0, concurrency >= 1")
        if not isinstance(model, str) or not model:
            raise InvalidArgument(f"model: expected the model's name on the server, not {model!r:.80}")
        try:
            url = httpx.URL(base_url)
        except (TypeError, httpx.InvalidURL) as error:
            raise InvalidArgument(f"base_url {base_url!r:.200}: {error}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise InvalidArgument(f"base_url: expected http://host:port/v1, not {base_url!r:.200}")
        self._url = str(url).rstrip("/") + ("/v1" if url.path in ("", "/") else "")
        self._model = model
        self._tokens = None if tokenizer is None else ServerTokens(tokenizer)
        self._given: ServerKind | None = None if server == "auto" else server
        self._kind: ServerKind | None = None
        self._timeout, self._retries, self._concurrency = timeout, retries, concurrency
        options = dict(client or {})
        headers = httpx.Headers(options.pop("headers", None))
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        self._options: dict[str, Any] = {
            "timeout": httpx.Timeout(timeout, connect=connect_timeout, pool=None),
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=concurrency),
            **options,
            "headers": headers,
        }
        self._lock = threading.Lock()
        self._client = httpx.Client(**self._options)
        # Connections belong to the event loop that made them.
        self._clients: weakref.WeakKeyDictionary[Any, httpx.AsyncClient] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"OpenAIBackend({self._url!r}, {self._model!r})"

    @property
    def name(self) -> str:
        return self._model

    @property
    def can(self) -> frozenset[str]:
        """As of `Backend`. Asks the server on first use: in a coroutine await `aconnect` before."""
        return capabilities(self.connect(), self._tokens)

    @property
    def tokenizer(self) -> Any:
        """As of `Backend`: only vLLM takes ids."""
        return self._tokens.tokenizer if self._tokens is not None and self.connect() == "vllm" else None

    def connect(self) -> ServerKind:
        """What server it is; asked once.

        Raises BackendUnavailable, BackendTimeout, BackendError; InvalidArgument where a vLLM server's own
        tokenizer makes other ids than the one given.
        """
        with self._lock:
            if self._kind is not None:
                return self._kind
            kind: ServerKind = self._given or self._detect()
            if kind == "vllm" and self._tokens is not None:
                self._check_tokenizer(self._tokens)
            self._kind = kind
            return kind

    async def aconnect(self) -> ServerKind:
        """`connect` for asyncio."""
        return await asyncio.to_thread(self.connect) if self._kind is None else self._kind

    def generate(self, prompts: Sequence[Prompt], params: Params) -> list[Generation]:
        """As of `Backend`. Each prompt is a request; an error ends all of them and names its prompt."""
        streams = [self.stream(prompt, params) for prompt in prompts]
        failed = threading.Event()

        def run(n: int) -> Generation | None:
            try:
                if not failed.is_set():
                    for _ in streams[n]:
                        if failed.is_set():
                            break
                    else:
                        return streams[n].generation
                streams[n].close()
                return None
            except BaseException as error:
                failed.set()
                raise _placed(error, n, len(streams)) from error.__cause__

        if len(streams) == 1:
            run(0)
            return [streams[0].generation]
        with ThreadPoolExecutor(min(len(streams), self._concurrency) or 1) as pool:
            try:
                done = [pool.submit(run, n) for n in range(len(streams))]
                errors = [error for one in done if (error := one.exception()) is not None]
            except BaseException:
                failed.set()
                raise
        if errors:
            raise errors[0]
        return [stream.generation for stream in streams]

    def stream(self, prompt: Prompt, params: Params) -> CompletionStream:
        """As of `Backend`. Nothing is sent before the first piece is asked for."""
        return CompletionStream(self, prompt, params)

    async def agenerate(self, prompts: Sequence[Prompt], params: Params) -> list[Generation]:
        """`generate` for asyncio."""
        streams = [self.astream(prompt, params) for prompt in prompts]
        bound = asyncio.Semaphore(self._concurrency)

        async def run(n: int) -> Generation:
            async with bound:
                try:
                    async for _ in streams[n]:
                        pass
                    return streams[n].generation
                except Exception as error:
                    raise _placed(error, n, len(streams)) from error.__cause__

        tasks = [asyncio.ensure_future(run(n)) for n in range(len(streams))]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def astream(self, prompt: Prompt, params: Params) -> AsyncCompletionStream:
        """`stream` for asyncio."""
        return AsyncCompletionStream(self, prompt, params)

    def close(self) -> None:
        """Closes the connections of threads. Those of an event loop: `aclose`, in it."""
        self._client.close()

    async def aclose(self) -> None:
        """Closes the connections of the running event loop, and of threads."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()
        self.close()

    def _request(self, kind: ServerKind, prompt: Prompt, params: Params) -> tuple[bytes, Completion]:
        return completion_request(kind, self._model, self._tokens, prompt, params)

    def _build(self, client: Any, path: str, body: bytes | None) -> httpx.Request:
        request: httpx.Request
        if body is None:
            request = client.build_request("GET", path)
        else:
            request = client.build_request(
                "POST", path, content=body, headers={"Content-Type": "application/json"}
            )
        return request

    def _send(self, path: str, body: bytes | None) -> httpx.Response:
        """The answer, of whatever status after the retries; its body is not read yet."""
        for attempt in range(self._retries + 1):
            try:
                response = self._client.send(self._build(self._client, path, body), stream=True)
            except _NO_ANSWER as error:
                wait = self._wait(attempt, error)
            else:
                if response.status_code not in _RETRIED or attempt == self._retries:
                    return response
                response.close()
                wait = self._wait(attempt, response)
            time.sleep(wait)
        raise AssertionError

    async def _asend(self, path: str, body: bytes | None) -> httpx.Response:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = httpx.AsyncClient(**self._options)
        for attempt in range(self._retries + 1):
            try:
                response = await client.send(self._build(client, path, body), stream=True)
            except _NO_ANSWER as error:
                wait = self._wait(attempt, error)
            else:
                if response.status_code not in _RETRIED or attempt == self._retries:
                    return response
                await response.aclose()
                wait = self._wait(attempt, response)
            await asyncio.sleep(wait)
        raise AssertionError

    def _wait(self, attempt: int, cause: Exception | httpx.Response) -> float:
        """Seconds until the next try. BackendUnavailable where there is none."""
        if isinstance(cause, httpx.Response):
            asked = _retry_after(cause.headers.get("Retry-After", ""))
            if asked is not None:
                return min(asked, _LONGEST_WAIT)
        elif attempt == self._retries:
            tries = f"{attempt + 1} tries" if attempt else "1 try"
            what = str(cause) or type(cause).__name__
            raise BackendUnavailable(f"{self._url}: no answer in {tries}: {what}") from cause
        return min(0.2 * 2.0**attempt, _LONGEST_WAIT) * random.uniform(0.5, 1.0)

    @contextlib.contextmanager
    def _reading(self, completion: Completion | None) -> Iterator[None]:
        """Turns errors of the connection into ours; once the completion has ended they do no harm."""
        try:
            yield
        except httpx.HTTPError as error:
            if completion is not None and completion.settled:
                return
            text = completion.text if completion is not None else ""
            what = str(error) or type(error).__name__
            if isinstance(error, httpx.TimeoutException):
                raise BackendTimeout(f"{self._url}: silent for {self._timeout} s", text=text) from error
            raise BadResponse(f"{self._url} broke off: {what}", text=text) from error

    def _reader(self, response: httpx.Response, completion: Completion) -> EventReader:
        whole = "json" in response.headers.get("Content-Type", "").lower()
        return EventReader(completion, events=not whole)

    def _json(self, path: str, body: bytes | None = None) -> Any:
        """What a small request gets; None where the server doesn't know the path."""
        with self._reading(None):
            response = self._send(path, body)
            try:
                answer = response.read()
            finally:
                response.close()
        if response.status_code in (401, 403, 429) or response.status_code >= 500:
            raise refused(response.status_code, answer, path)
        with contextlib.suppress(ValueError):
            return json.loads(answer) if response.is_success else None
        return None

    def _detect(self) -> ServerKind:
        models = self._json(f"{self._url}/models")
        found = models.get("data") if isinstance(models, dict) else None
        for one in found if isinstance(found, list) else ():
            if isinstance(one, dict) and one.get("owned_by") == "vllm":
                return "vllm"
        schema = self._json(f"{self._url.removesuffix('/v1')}/openapi.json")
        paths = schema.get("paths") if isinstance(schema, dict) else None
        return "transformers" if isinstance(paths, dict) and "/load_model" in paths else "generic"

    def _check_tokenizer(self, tokens: ServerTokens) -> None:
        text, ids = tokenizer_probe(tokens)
        body = json.dumps({"model": self._model, "prompt": text, "add_special_tokens": False}).encode()
        answer = self._json(f"{self._url.removesuffix('/v1')}/tokenize", body)
        theirs = answer.get("tokens") if isinstance(answer, dict) else None
        if theirs is not None and theirs != ids:
            raise InvalidArgument(
                f"tokenizer: not that of {self._model!r} on {self._url}: {text!r} is {theirs!r:.200} there, "
                f"here {ids!r:.200}"
            )


class _Base:
    def __init__(self, backend: OpenAIBackend, prompt: Prompt, params: Params) -> None:
        self._backend, self._prompt, self._params = backend, prompt, params
        self._generation: ServerGeneration | None = None

    @property
    def generation(self) -> ServerGeneration:
        """As of `Stream`; a generation that was closed early has none."""
        if self._generation is None:
            raise InvalidArgument("the generation has not ended")
        return self._generation


class CompletionStream(_Base):
    """A `Stream` of one request."""

    def __init__(self, backend: OpenAIBackend, prompt: Prompt, params: Params) -> None:
        super().__init__(backend, prompt, params)
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        self._pieces.close()

    def _run(self) -> Generator[str, None, None]:
        backend = self._backend
        body, completion = backend._request(backend.connect(), self._prompt, self._params)
        path = f"{backend._url}/completions"
        with backend._reading(completion):
            response = backend._send(path, body)
            try:
                if not response.is_success:
                    raise refused(response.status_code, response.read(), path)
                reader = backend._reader(response, completion)
                for chunk in response.iter_bytes():
                    piece = reader.feed(chunk)
                    if piece:
                        yield piece
                    if reader.finished:
                        break
            finally:
                response.close()
        tail = reader.end()
        self._generation = completion.generation()
        if tail:
            yield tail


class AsyncCompletionStream(_Base):
    """An `AsyncStream` of one request."""

    def __init__(self, backend: OpenAIBackend, prompt: Prompt, params: Params) -> None:
        super().__init__(backend, prompt, params)
        self._pieces = self._run()

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        await self._pieces.aclose()

    async def _run(self) -> AsyncGenerator[str, None]:
        backend = self._backend
        body, completion = backend._request(await backend.aconnect(), self._prompt, self._params)
        path = f"{backend._url}/completions"
        with backend._reading(completion):
            response = await backend._asend(path, body)
            try:
                if not response.is_success:
                    raise refused(response.status_code, await response.aread(), path)
                reader = backend._reader(response, completion)
                async for chunk in response.aiter_bytes():
                    piece = reader.feed(chunk)
                    if piece:
                        yield piece
                    if reader.finished:
                        break
            finally:
                await response.aclose()
        tail = reader.end()
        self._generation = completion.generation()
        if tail:
            yield tail


def _placed(error: BaseException, n: int, of: int) -> BaseException:
    """The error, its message beginning with the prompt's place among several."""
    if of > 1 and isinstance(error, MemstoreError):
        error.args = (f"prompts[{n}]: {error}", *error.args[1:])
    return error


def _retry_after(value: str) -> float | None:
    """Seconds that a Retry-After header asks for: a number, or a date."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(TypeError, ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None
