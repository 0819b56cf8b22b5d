"""What the tour shows, and how: shapes, specs, who holds what, phases, times, and checks."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.panel import Panel
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from shardserve import Call
from shardserve_proto.layout import holders
from shardserve_proto.messages import PlacementReport, Report
from shardserve_proto.specs import P, describe_mesh, spec_from_wire

PHASES = ("receive", "queue", "upload", "compile", "run", "gather")


class Screen:
    """The tour's output; it counts the checks that failed.

    Arguments:
        console: where to print; by default the terminal.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.passed = 0
        self.failed: list[str] = []
        self.skipped: list[str] = []

    def title(self, text: str, *notes: str) -> None:
        """The head of the tour."""
        self.console.print(Panel(Group(Text(text, style="bold"), *map(Text, notes)), expand=False))

    def chapter(self, number: int, title: str, story: str) -> None:
        """A new chapter."""
        self.console.print()
        self.console.print(Rule(f"[bold]{number}  {title}", align="left"))
        self.console.print(story, style="dim")

    def code(self, text: str) -> None:
        """The lines that the chapter runs."""
        self.console.print(Syntax(text.strip("\n"), "python", theme="ansi_dark", background_color="default"))

    def layout(self, report: Report) -> None:
        """Mesh and specs of a call: what was split, and what each device held."""
        self.console.print(f"  mesh {describe_mesh(report.mesh) or 'of one device'}, precision {report.precision}")
        for index, argument in enumerate(report.arguments):
            self.console.print(_placement(f"argument {index}", argument))
        for output in report.outputs:
            self.console.print(_placement("result", output))

    def picture(self, call: Call) -> None:
        """Which device holds which part of the result."""
        text = call.picture().partition("\n")[2]  # the first line says what the layout has said
        if max(map(len, text.splitlines())) > self.console.width - 6:
            text = ruler(call.report)
        self.console.print("  the devices that hold the parts of the result:")
        self.console.print(Text("\n".join("  " + line for line in text.splitlines())))

    def times(self, first: Call, again: Call, numpy_s: float) -> None:
        """The phases of both runs, the whole calls, and NumPy's own time beside them."""
        table = Table(*("", *PHASES, "other", "in all"), box=None, padding=(0, 0, 0, 2), header_style="dim")
        for column in table.columns[1:]:
            column.justify = "right"
        for name, call in (("first", first), ("again", again)):
            phases = [call.report.phases_s.get(phase, 0.0) for phase in PHASES]
            other = max(call.elapsed_s - sum(phases), 0.0)  # the client, and the download behind its first byte
            table.add_row(name, *map(_seconds, phases), _seconds(other), _seconds(call.elapsed_s))
        table.add_row("NumPy", *[""] * (len(PHASES) + 1), _seconds(numpy_s))
        self.console.print(table)

    def check(self, claim: str, *, is_true: bool) -> None:
        """A claim that was put to the test."""
        if is_true:
            self.passed += 1
            self.console.print(f"  [green]✓[/green] {claim}")
        else:
            self.failed.append(claim)
            self.console.print(f"  [bold red]✗ {claim}[/bold red]")

    def error(self, error: Exception) -> None:
        """An error that was meant to come."""
        self.console.print(Text(f"  {type(error).__name__}: {error}", style="yellow"))

    def skip(self, reason: str) -> None:
        """A chapter that cannot run here."""
        self.skipped.append(reason)
        self.console.print(Text(f"  skipped: {reason}", style="yellow"))

    @property
    def exit_status(self) -> int:
        """0 when every check passed."""
        return 1 if self.failed or not self.passed else 0

    def summary(self, seconds: float) -> None:
        """The last lines."""
        self.console.print()
        self.console.print(Rule(align="left"))
        style = "red" if self.failed else "green"
        told = f"{self.passed} checks passed, {len(self.failed)} failed"
        told += f", {len(self.skipped)} of the chapters skipped" if self.skipped else ""
        self.console.print(f"[bold {style}]{told}[/bold {style}] in {seconds:.0f} s")
        for claim in self.failed:
            self.console.print(f"  ✗ {claim}", style="red")


def ruler(report: Report) -> str:
    """A result of one dimension as a strip: a box with the devices of each part, and the bounds below it."""
    (output,) = report.outputs
    held = holders(output, report.mesh, report.devices)
    boxes = [",".join(map(str, held[part])).center(7) for part in sorted(held)]
    bounds = [min(part * output.shard_shape[0], output.shape[0]) for part in range(len(boxes) + 1)]
    ticks = "".join(_short(bound).ljust(8) for bound in bounds)
    return f"|{'|'.join(boxes)}|\n{ticks}".rstrip()


def _short(count: int) -> str:
    return f"{count / 1e6:g}M" if count >= 10**6 else str(count)


def _placement(title: str, placed: PlacementReport) -> str:
    spec = spec_from_wire(placed.spec)
    shown = "replicated" if spec == P() else f"as {spec}"
    padding = "" if placed.padded_shape == placed.shape else f", padded to {_shape(placed.padded_shape)}"
    array = f"{placed.dtype}{_shape(placed.shape)}"
    return f"  {title:<10}  {array} {shown}{padding};\n{'':14}{_shape(placed.shard_shape)} on each device"


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(f'{size:_}'.replace('_', ' ') for size in shape)}]"


def _seconds(seconds: float) -> str:
    if not seconds:
        return "-"
    if seconds < 0.0995:
        return f"{seconds * 1e3:.2g} ms" if seconds < 0.00995 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"
