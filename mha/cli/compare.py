"""`mha compare`: the attention layers of two files, by their weights and their outputs; or two records of models."""

import math
import os
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from mha import parity
from mha.cli import terminal, weights
from mha.cli.audit import layer_result
from mha.cli.results import Html, Junit, ResultFiles
from mha.cli.terminal import flag, option
from mha.models.records.reading import is_record
from mha.parity import FilesReport, LayersReport, RecordsReport, Result


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A file of weights, a directory with one, or a record.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The file or directory to compare with A.")],
    scheme_a: Annotated[
        str, option("SCHEME", f"The naming scheme of A's arrays: {weights.SCHEME}", "--from-a")
    ] = "auto",
    scheme_b: Annotated[str, option("SCHEME", "The naming scheme of B's arrays, likewise.", "--from-b")] = "auto",
    prefix_a: Annotated[str | None, option("PREFIX", "The beginning of the names of the layer's arrays in A.")] = None,
    prefix_b: Annotated[
        str | None, option("PREFIX", "The same for B; default: that of the partner of A's layer.")
    ] = None,
    num_heads: Annotated[int | None, option("H", "The number of heads, if a file does not say it.")] = None,
    rotary: Annotated[str | None, option("BASE", "Rotation: a base, none, or base=B,dim=N; likewise.")] = None,
    qk_norm: Annotated[str | None, option("NORM", "The norm of queries and keys, rms or layer; likewise.")] = None,
    names: Annotated[
        str | None, option("NAMES", "The names of the projections, if no scheme has them: W_q=to_q,W_k=... and so on.")
    ] = None,
    names_b: Annotated[str | None, option("NAMES", "The same for B alone; default: those of --names.")] = None,
    causal: Annotated[bool, flag("--causal", "Of records, with --names: no query sees a later token.")] = False,
    path: Annotated[
        list[str] | None,
        option("A=B", "Of records: a module's path in A, and in B, A= leaves it out; {} = the number of a layer."),
    ] = None,
    json_file: Annotated[
        str | None, option("FILE", "Of records: write the report as JSON; - = stdout.", "--json")
    ] = None,
    junit: Junit = None,
    html: Html = None,
) -> None:
    """Compare the attention layers of two files, or two records of models.

    A and B are files of mha, or checkpoints of any known naming scheme. For each weight, the report says whether B's
    has the same bits as A's, is the same up to rounding, or differs, and which known change (such as a transpose)
    makes B's from A's. Then it compares the outputs for the same inputs, and names the known mistake that explains
    those of B.

    Without prefixes, all layers are compared: pairs of equal prefixes, else of the same weights, else in the order of
    their prefixes. Swapped layers differ; so do files of which one has a layer without a partner. A prefix chooses one
    layer, and its partner in the other file.

    If no scheme has the names of a file, --names says what its projections are called, below the path of a layer. One
    name for several means that they are packed one after another; axes=io says that kernels are (in, out), axes=oi that
    they are (out, in), where their own names (kernel, weight) do not show it.

    Arrays that stand beside a layer's weights, such as T5's table of biases, are compared as arrays. The last line says
    which other arrays were not compared.

    If a file does not say something, such as the number of heads or the window, it is taken from the options, or else
    from the other file.

    If A and B are records, which `mha.parity.record` writes, the report says between which two modules the difference
    begins, beyond what rounding explains. If they have weights, their attention is judged by float64 NumPy, too; where
    no table has their names, --names says what the projections are called, and --num-heads, --causal and --rotary what
    such layers compute.

    \b
    Examples:
      mha compare layer.safetensors ported.safetensors
      mha compare bert.safetensors keras.safetensors \\
        --prefix-a encoder.layer.0.attention \\
        --prefix-b block_0.attention
      mha compare ours.safetensors theirs.npz \\
        --names W_q=to_q,W_k=to_k,W_v=to_v,W_o=to_out
      mha compare theirs.safetensors ours.safetensors

    Exit code 0 if the layers are the same, even if they are stored in another way or rounded; 1 if they differ; 2 if
    a file cannot be used, or if the command is wrong.
    """
    files = ResultFiles("mha compare", junit, html)
    records = [is_record(name) for name in (a, b)]
    if any(records):
        if not all(records):
            other = (a, b)[records.index(False)]
            kind = "is no record, but the other file is one; give two of a kind"
            terminal.fail(f"{other} {kind}" if os.path.exists(other) else f"there is no file {other}")
        options = weights.layer_options(rotary, qk_norm, num_heads=num_heads)
        layers: Any = weights.user_layers("names", names, options, causal)
        if names_b is not None:
            layers = layers, weights.user_layers("names_b", names_b, options, causal)
        _records(a, b, path, layers, json_file, files)
    for name, given in (("--path", path), ("--causal", causal), ("--json", json_file)):
        if given:
            terminal.fail(f"{name} is for records, which A and B are not; leave it out")
    said: dict[str, Any] = {"scheme_a": scheme_a, "scheme_b": scheme_b, "prefix_a": prefix_a, "prefix_b": prefix_b}
    said |= {"names": weights.parse_names("names", names), "names_b": weights.parse_names("names_b", names_b)}
    said |= weights.layer_options(rotary, qk_norm, num_heads=num_heads)
    with terminal.file_errors():
        report = parity.compare_files(a, b, track=lambda pairs: terminal.track("Comparing", pairs), **said)
    pairs = zip(report.layers, report.reports, strict=True)
    prefix, differing = next(((pair[1][1], one.outputs) for pair, one in pairs if not one.agree), ("", None))
    files.write_report("B", report, results_of_files(report), differing, prefix)
    terminal.console().print(report)
    raise typer.Exit(0 if report else 1)


def results_of_files(report: FilesReport) -> Iterator[Result]:
    """Yield a result for each weight, and for each array that was computed with the weights, of each pair of layers."""
    for (_, (_, prefix)), layers in zip(report.layers, report.reports, strict=True):
        yield from results_of_layers(prefix or "B", layers)


def results_of_layers(name: str, report: LayersReport) -> Iterator[Result]:
    """Yield a result for each array of two layers; none fails where they are the same, though written another way."""
    for row in (*report.rows, *report.beside):
        difference = 0.0 if report or row.same else row.difference or math.inf
        yield Result(name, "weight", row.name, row.dtypes[1], row.note or row.verdict, difference, 0.0)
    if report.outputs is not None:
        for step in report.outputs.rows:
            where = step.note if step.place is None else step.place.where
            error = min(step.ratio, 1.0) if report else step.ratio
            yield Result(name, "output", step.title or step.name, report.outputs.dtype, where, error, 1.0)


def _records(a: str, b: str, path: list[str] | None, layers: Any, json_file: str | None, files: ResultFiles) -> None:
    """Compare two records, and end the command."""
    to_json = terminal.JsonFile(json_file)
    pairs = [one.split("=") for one in path or ()]
    for pair in pairs:
        if len(pair) != 2:
            terminal.fail(f"--path is {'='.join(pair)}, expected the path of a module in A, =, and its path in B")
    said = {ours: theirs or None for ours, theirs in pairs}
    with terminal.errors():
        report = parity.compare_records(a, b, said, layers, track=lambda steps: terminal.track("Comparing", steps))
    path_of_layer, differing = (report.layer.path, report.layer.report) if report.layer else ("", None)
    files.write_report(report.models[1].name, report, results_of_records(report), differing, path_of_layer)
    to_json.show(report)


def results_of_records(report: RecordsReport) -> Iterator[Result]:
    """Yield a result for each input and output of a module, and for each layer that is wrong in B alone."""
    name = report.models[1].name
    for row in report.rows:
        error = {"same": row.ratio, "differs": row.ratio, "another cut": 0.0}.get(row.verdict, math.inf)
        where = row.note or ("" if row.verdict in ("same", "differs") else row.verdict)
        yield Result(name, row.what, row.path or "the model", "", where, error, 1.0)
    for layer in report.wrong:
        yield layer_result(name, layer)
