"""`compaction serve` and `compaction serve-token`."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Where to listen; only this machine unless told otherwise.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8080,
    dev: Annotated[
        bool, typer.Option("--dev", help="Make a token for all tenants, for this run, and print it.")
    ] = False,
) -> None:
    """Serve table operations over HTTP: create, write, query, compact."""
    import logging

    from compaction_platform.serve.http.app import create_app, service_of, tokens_of
    from compaction_platform.serve.http.auth import ALL, Tokens, hash_of, new_token
    from compaction_platform.serve.http.server import listening, run
    from compaction_platform.serve.http.telemetry import log, log_to_stdout
    from compaction_platform.settings import load_settings

    settings = load_settings()
    token = new_token()
    tokens = (lambda: Tokens({hash_of(token): frozenset({ALL})})) if dev else tokens_of(settings)
    with contextlib.ExitStack() as until_done:
        application = create_app(service_of(settings, until_done, lambda text: log(logging.INFO, text)), tokens)
        with listening(host, port) as listener:
            address = f"http://{host}:{listener.getsockname()[1]}"
            if dev:
                typer.echo(f"token, for this run only: {token}")
            typer.echo(f"serving on {address}   (operations: {address}/docs)   Ctrl-C stops it")
            log_to_stdout()
            run(application, listener)


@app.command("serve-token")
def serve_token(
    tenant: Annotated[list[str], typer.Option(help="Whom the token is for; may be given several times.")],
) -> None:
    """Make a token for the HTTP service. It is printed once; only its hash is kept."""
    from compaction_platform.serve.http.auth import add_token
    from compaction_platform.settings import load_settings

    settings = load_settings()
    settings.require("serve_tokens_file", purpose="keeping the hashes of tokens")
    typer.echo(add_token(Path(str(settings.serve_tokens_file)), tenant))
