"""Our app in its own process, serving one temperature map of 1,000 classes."""

import base64
import sys
import tempfile
from pathlib import Path
from typing import Any

from calibrators import archive
from calibrators.methods.temperature import TemperatureMap

CLASSES = 1000
MAP = TemperatureMap(k=CLASSES, temperature=1.7)


def serve(port: int) -> None:
    """Serve the real app with two empty routes: one reads the body, the other does not.

    Their paths end in /predict, so that they are logged as little as the real route.
    """
    import httpx
    import uvicorn
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from service import logs
    from service.app import create_app
    from service.cli.open_store import prepared
    from service.http.server.protocol import HttpProtocol
    from service.settings import Settings

    async def empty(_request: Request) -> Response:
        return Response()

    async def reads(request: Request) -> Response:
        await request.body()
        return Response()

    def app(folder: str) -> FastAPI:
        settings = Settings(data_dir=Path(folder), workers=0)
        prepared(settings).close()
        made = create_app(settings)
        made.router.routes[:0] = [
            Route("/empty/predict", empty, methods=["POST"]),
            Route("/reads/predict", reads, methods=["POST"]),
        ]
        return made

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.config.app)) as client:  # type: ignore[arg-type]
                text = base64.b64encode(archive.dump(MAP)).decode()
                url = "http://127.0.0.1/v1/calibrators/bench/versions"
                (await client.post(url, json={"map": text})).raise_for_status()

    logs.configure("warning", "json")
    with tempfile.TemporaryDirectory() as folder:
        config = uvicorn.Config(
            app(folder), http=HttpProtocol, port=port, log_config=None, access_log=False
        )
        Server(config).run()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
