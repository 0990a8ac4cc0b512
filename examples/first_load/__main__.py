"""Shows a first load from a database on this machine: ``python -m examples.first_load``.

Java and MariaDB's server must be installed, and ``tidesink[demo,mysql]``.
"""

from __future__ import annotations

import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from examples.first_load.demo import DemoOptions, DemoResult, run_demo
from tidesink.cli import terminal
from tidesink.cli.diff import diff_json, show_diffs
from tidesink.cli.terminal import Output, OutputFormat, ProgressLines, note, write_json
from tidesink.dev.stack import DIRECTORY

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
@terminal.guarded
def main(
    *,
    rows: Annotated[int, typer.Option(min=100, help="Number of orders before the load.")] = 40_000,
    events: Annotated[
        int, typer.Option(min=1, help="Number of row events; more are sent if the load takes longer.")
    ] = 3_000,
    seed: Annotated[int, typer.Option(help="The same seed makes the same changes.")] = 1,
    batch_records: Annotated[
        int, typer.Option(min=1, help="Most records of a batch, and rows of a key range.")
    ] = 10_000,
    directory: Annotated[Path, typer.Option("--dir", help="Folder for data, logs and the lake.")] = DIRECTORY,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Load a database into a lake while its rows change, and compare both with `tidesink diff`.

    The example starts a broker and a MariaDB server. The database's rows are not in Kafka. A worker loads
    these rows while they change, and `tidesink diff` compares the database with the lake. Then the example
    alters a row in the lake, and `tidesink diff` must find it; the exit code is 1 if it does not.
    """
    # Closing the terminal ends the example like Ctrl-C: no server may be left running.
    signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))
    started = time.monotonic()

    def say(text: str) -> None:
        note(f"{time.monotonic() - started:6.1f} s  {text}")

    options = DemoOptions(directory, rows, events, seed, batch_records)
    result = run_demo(
        options, say, listener=ProgressLines(lambda text: say(f"worker: {text}"), brokers="here")
    )
    if output is OutputFormat.JSON:
        write_json(_as_json(result))
    else:
        _show(result)
    if not result.right:
        raise typer.Exit(terminal.FAILED)


def _as_json(result: DemoResult) -> dict[str, Any]:
    return {
        "right": result.right,
        "rows": result.rows,
        "events": result.events,
        "equal": [diff_json(diff) for diff in result.equal],
        "altered": [diff_json(diff) for diff in result.altered],
        "error": result.run.error,
        "seconds": result.seconds,
        "config": str(result.config),
        "lake": str(result.lake),
    }


def _show(result: DemoResult) -> None:
    typer.echo("\nComparison of the source and the lake while both changed")
    show_diffs(result.equal)
    typer.echo("\nComparison after one row was altered in the lake")
    show_diffs(result.altered)
    for report in result.run.tables:
        if report.error:
            typer.echo(f"{report.table} is {report.state}: {report.error}")
    took = ", ".join(f"{name} {count:.1f} s" for name, count in result.seconds.items())
    if result.right:
        typer.echo(
            f"\nRight: after {result.rows:,} rows of the database and {result.events:,} row events of Kafka, "
            f"the lake\nequals the source, and the altered row was found.\n({took})"
        )
    else:
        typer.echo(f"\nNOT right: see above. ({took})")
    typer.echo(f"The lake stays in {_from_here(result.lake)}; the database was removed. To show its tables:")
    typer.echo(f"  {shlex.join(['tidesink', 'status', str(_from_here(result.config))])}")


def _from_here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    terminal.interrupt_on_sigterm()
    try:
        app()
    except Exception as error:  # noqa: BLE001  (as the command line does)
        terminal.show_fault(error)
        sys.exit(terminal.FAILED)
