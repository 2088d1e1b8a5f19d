"""A search service over HTTP by Search-R1's protocol (extra `benchmarks`: fastapi, uvicorn)."""

import socket
from collections.abc import Callable
from threading import Lock
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, Field

from lldlib.retrieval.passages import Hit, ScoredRetriever, join_contents


class SearchRequest(BaseModel):
    """What a client posts."""

    queries: list[str]
    topk: Annotated[int, Field(ge=1)] | None = None  # passages per query; None: the server's choice
    return_scores: bool = False


def make_app(retriever: ScoredRetriever, topk: int) -> FastAPI:
    """The service: POST /retrieve, as `lldlib.retrieval.client` describes it.

    Without `return_scores` a result is the document alone. A malformed request gets status 422.
    """
    app, turn = FastAPI(title="lldlib search"), Lock()

    @app.post("/retrieve")
    def retrieve(request: SearchRequest) -> dict[str, Any]:
        with turn:  # requests come from several threads, and the retriever keeps a cache
            found = retriever.scored(request.queries, request.topk or topk)
        return {"result": [[_item(hit, request.return_scores) for hit in hits] for hits in found]}

    return app


def _item(hit: Hit, with_score: bool) -> dict[str, Any]:
    passage = hit.passage
    document = {"id": passage.id, "contents": join_contents(passage.title, passage.text)}
    return {"document": document, "score": hit.score} if with_score else document


def serve(app: FastAPI, host: str, port: int, on_ready: Callable[[str], object]) -> None:
    """Serve until interrupted; `on_ready` is given the address once it is bound (port 0: any free).

    Raises OSError where the address cannot be bound.
    """
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.create_server((host, port)) as listening:
        on_ready(f"http://{host}:{listening.getsockname()[1]}/retrieve")
        server.run(sockets=[listening])
