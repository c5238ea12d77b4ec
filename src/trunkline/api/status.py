"""The application of the metrics port: the three probes of the process, and nothing else."""

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from trunkline import __version__
from trunkline.api import errors
from trunkline.api.deps import Api
from trunkline.api.request_context import RequestContext
from trunkline.api.routes import probes


def create_status(api: Api) -> FastAPI:
    app = FastAPI(
        title="Trunkline status",
        version=__version__,
        middleware=[Middleware(RequestContext)],
        exception_handlers={HTTPException: errors.handle, RequestValidationError: errors.handle},
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.api = api
    app.include_router(probes.router)
    return app
