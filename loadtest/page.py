#!/usr/bin/env python3
"""`make benchmarks-page`: writes docs/benchmarks.md from the reports of the benchmarks.

The reports are the Markdown files that `make bench`, `make bench-cluster`, `make bench-structures`,
`make bench-ledger`, `make bench-purge` and `make bench-state` write. The page shows some of their
tables and pictures. The text around them comes from the notes in `loadtest/benchmarks/`. Notes
begin with an introduction. A `## TITLE` in the notes puts text below the page's section of that
title, or adds a section. Everything is checked before anything is written: a report, table or
picture that is missing leaves the page as it was. `--keep PART` takes a part from the page as it
is, so that its benchmark need not be run again.
"""

import argparse
import datetime
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTES = ROOT / "loadtest" / "benchmarks"
COLUMNS = 100

# Pictures of the page, by the names of their files. Each takes 20 KB of the repository.
ENGINE_PICTURES = ("put-by-batch", "range-by-length-1000000", "get-by-history", "reads-per-get-100", "plateau-disk")
CLUSTER_PICTURES = ("write-1000-x-1024-B",)
# Rows of the comparison of engines that the page leaves out, by what their names contain.
LEFT_OUT = ("p50", "afterwards", "ranges of 1,000", "proof of one record")
# The workload of the report that the page shows.
WORKLOAD = "YCSB-like, Zipf 0"
PARTIES = "Parties with histories of their own, in one store"

CELL = ("A cell has records a second; p50 / p99; processor time of the servers for a record; bytes written to the device for a "
        "record. Brackets divide the processor time among kinds of processes, and add the driver with its clients.")

TITLES = {
    "engine": "The engine compared with other engines",
    "cluster": "Clusters compared with other systems",
    "structures": "The forest compared with other structures",
    "ledgers": "Ledgers of members",
    "state": "State of other platforms",
}

HEAD = """# Benchmarks

<!-- `make benchmarks-page` writes this page. To change its text, change loadtest/benchmarks/. -->
"""


class PageError(Exception):
    """Something that the page needs is missing."""


class Table:
    """A table of a report."""

    def __init__(self, lines):
        self.lines = lines
        self.head, _, *self.rows = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines]


class Report:
    """A report of a benchmark, divided into sections of paragraphs and tables."""

    def __init__(self, path, make):
        self.path, self.make = pathlib.Path(path), make
        if not self.path.is_file():
            raise PageError(f"{self.path} is missing: {make} makes it")
        self.sections = sections(self.path.read_text())

    def missing(self, what):
        return PageError(f"{self.path} has no {what}: {self.make} makes a report that has it")

    def section(self, title):
        if title not in self.sections:
            raise self.missing(f"section {title!r}")
        return self.sections[title]

    def table(self, title, first):
        """The section's table whose first column has the heading `first`."""
        for block in self.section(title):
            if isinstance(block, Table) and block.head[0] == first:
                return block
        raise self.missing(f"table with a column {first!r} in its section {title!r}")

    def paragraphs(self):
        return [block for blocks in self.sections.values() for block in blocks if isinstance(block, str)]


def sections(text):
    """Maps titles to blocks. Text before the first heading has the title ''."""
    found = {"": []}
    blocks = found[""]
    for part in re.split(r"\n\s*\n", text.strip()):
        lines = part.splitlines()
        if lines and re.match(r"#+ ", lines[0]):
            blocks = found.setdefault(lines.pop(0).lstrip("#").strip(), [])
        if lines:
            blocks.append(Table(lines) if lines[0].startswith("|") and len(lines) > 1 else "\n".join(lines))
    return found


def wrapped(paragraph):
    """The paragraph in lines of the page's width; items of a list stay apart."""
    lines = []
    for item in re.split(r"\n(?=- )", paragraph):
        # A sign between two words must not begin a line, where it would begin a list.
        text = re.sub(r" ([-+*#>]|\d+[.)]) ", "\u00a0\\1 ", " ".join(item.split()))
        indent = "  " if item.startswith("- ") else ""
        lines += textwrap.wrap(text, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\u00a0", " ")


def rendered(blocks):
    return "\n\n".join("\n".join(block.lines) if isinstance(block, Table) else wrapped(block) for block in blocks)


def grid(head, rows):
    rows = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def notes(name, directory=NOTES):
    """The sections of the notes, with their links as they are from docs/."""
    text = re.sub(r"\]\((?!https?:|#)([^)#]+)", lambda link: f"]({os.path.relpath(directory / link[1], ROOT / 'docs')}",
                  (directory / f"{name}.md").read_text())
    return {title: rendered(blocks) for title, blocks in sections(text).items()}


def part(title, about, conditions, shown):
    """A part of the page: its notes, the conditions of the run, and the shown sections."""
    texts = [f"## {title}", about.pop(""), conditions]
    for name, body in shown.items():
        texts += [f"### {name}", body, about.pop(name, "")]
    for name, body in about.items():
        texts += [f"### {name}", body]
    return "\n\n".join(text for text in texts if text)


def joined(texts, by):
    """The texts, or one of them if they are equal."""
    return texts[0] if len(set(texts)) == 1 else by.join(texts)


def one_place(left, right):
    """Place of the only number in which two names differ; else `None`. Numbers have odd places."""
    places = [place for place, (one, other) in enumerate(zip(left, right)) if one != other]
    return places[0] if len(left) == len(right) and len(places) == 1 and places[0] % 2 else None


def numbered(rows):
    """Rows that have one verdict, and names that differ in one number, become one row."""
    groups = []
    for row in rows:
        parts = re.split(r"(\d[\d.,]*\d|\d)", row[0])
        for group in groups:
            place = one_place(group[0][0], parts)
            if place and group[0][1][-1] == row[-1] and all(one_place(one, parts) == place for one, _ in group):
                group.append((parts, row))
                break
        else:
            groups.append([(parts, row)])
    result = []
    for group in groups:
        name = [joined(texts, " / ") for texts in zip(*(parts for parts, _ in group))]
        result.append(["".join(name), *(joined(texts, " / ") for texts in zip(*(row[1:] for _, row in group)))])
    return result


def listed(names):
    """Names in one cell. Names of one subject (`SUBJECT: FIGURE`) have it once, and the words with
    which all these figures end."""
    subjects = {}
    for name in names:
        subject, _, figure = name.rpartition(": ")
        subjects.setdefault(subject or name, []).append(figure.split())
    texts = []
    for subject, figures in subjects.items():
        end = 0
        while len(figures) > 1 and len({figure[-1 - end] if end < len(figure) else number
                                        for number, figure in enumerate(figures)}) == 1:
            end += 1
        starts = ", ".join(" ".join(figure[:len(figure) - end]) for figure in figures)
        text = " ".join([starts, *figures[0][len(figures[0]) - end:]])
        texts.append(f"{subject}: {text}" if subject not in names else subject)
    return "; ".join(texts)


def folded(rows):
    """Rows of (name, goal, measured, verdict) that have one goal and one verdict become one row."""
    groups = {}
    for name, goal, measured, met in numbered(rows):
        groups.setdefault((goal, met), []).append((name, measured))
    return [[listed([name for name, _ in members]), goal, joined([measured for _, measured in members], "; "), met]
            for (goal, met), members in groups.items()]


def verdicts(rows):
    met, missed = (sum(row[-1] == verdict for row in rows) for verdict in ("yes", "**no**"))
    others = len(rows) - met - missed
    return f"{met} met, {missed} missed" + (f", {others} not measured" if others else "")


def pictures(report, names, directory, prefix, titles):
    """Markdown and a map from names in docs/benchmarks/ to files."""
    files = {f"{prefix}{name}.svg": report.path.parent / directory / f"{name}.svg" for name in names}
    for path in files.values():
        if not path.is_file():
            raise PageError(f"{path} is missing: {report.make} makes it")
    lines = [f"![{title}](benchmarks/{file})" for title, file in zip(titles, files)]
    return "\n".join(lines), files


def engine(report):
    goals, compared = report.table("Goals", ""), report.table("Side by side", "")
    titles = {name: title for text in report.section("Curves")
              for title, name in re.findall(r"!\[([^\]]*)\]\(benchmarks/([^)]*)\.svg\)", text)}
    shown, files = pictures(report, ENGINE_PICTURES, "benchmarks", "", [titles.get(name, name) for name in ENGINE_PICTURES])
    # The first paragraph says what the report is; the notes say it here.
    blocks = report.section("The engine beside its peers")[1:]
    conditions = rendered(block for block in blocks if isinstance(block, str))
    machine = report.table("The engine beside its peers", "the machine itself")
    turned = list(zip(machine.head, *machine.rows))
    conditions += "\n\n" + grid(turned[0], turned[1:])
    text = part(TITLES["engine"], notes("engine"), conditions, {
        "Goals": grid(goals.head, folded(goals.rows)),
        "Side by side": "Medians, and the least and greatest figure of systems that were measured repeatedly.\n\n"
                        + grid(compared.head, [row for row in compared.rows if not any(word in row[0] for word in LEFT_OUT)]),
        "What is timed, durable and proven": rendered(report.section("What is timed, durable and proven")),
        "Curves": shown,
    })
    revision = re.search(r"Revision (\S+)\.", conditions)
    return text, files, verdicts(goals.rows), revision and revision[1]


def load_cell(figures):
    """Returns one system's figures under one load: processor time of the servers for a record, in
    brackets that of each kind of process; bytes on disk for writes."""
    def figure(form, *columns):
        values = [figures[column] for column in columns]
        return [form.format(*values)] if all(values) else []

    latency = figure("{} / {} ms", "p50 ms", "p99 ms") or figure("{} ms", "p50 ms")
    if figures["what"].startswith("half load"):
        return "; ".join(latency)
    costs = figure("{} us ({})", "CPU us a record", "of which")
    if " reads" not in figures["what"]:
        costs += figure("{} B", "disk bytes a record")
    return "; ".join(figure("{}/s", "records/s") + latency + costs)


def pivot(table):
    """Rows of loads, columns of systems, of a table with a row for each pair."""
    rows = [dict(zip(table.head, row)) for row in table.rows]
    # Other clusters, whose figures are in a goal.
    rows = [row for row in rows if not row["what"].startswith("one shard touched")]
    systems, loads = (list(dict.fromkeys(row[name] for row in rows)) for name in ("system", "what"))
    cells = {(row["system"], row["what"]): load_cell(row) for row in rows}
    return grid(["", *systems], [[load, *(cells.get((system, load), "") for system in systems)] for load in loads])


def cluster(report):
    title = "Coppice beside its peers"
    goals, loads, killed, facts = (report.table(title, first) for first in ("goal", "system", "killed leader", "what is compared"))
    shown, files = pictures(report, CLUSTER_PICTURES, "", "cluster-", CLUSTER_PICTURES)
    conditions = rendered(text for text in report.section(title) if isinstance(text, str)
                          and text.startswith(("Conditions:", "The machine:")))
    text = part(TITLES["cluster"], notes("cluster"), conditions, {
        "Cluster goals": grid(goals.head, numbered(goals.rows)),
        "Cluster load": "\n\n".join([wrapped(CELL), pivot(loads), grid(killed.head, killed.rows), shown]),
        "What an answer stands for": grid(facts.head, facts.rows),
    })
    return text, files, verdicts(goals.rows), None


def workload(report, name):
    """One table of the medians of the workload's times, and of its sizes."""
    about, *blocks = report.section(name)
    tables = [block for block in blocks if isinstance(block, Table)]
    if len(tables) != 2:
        raise report.missing(f"two tables in its section {name!r}")
    times, sizes = tables
    rows = [[row[0], *(cell.partition(" (")[0] for cell in row[1:]), *more[1:]]
            for row, more in zip(times.rows, sizes.rows)]
    return f"{wrapped(about)}\n\n{grid(times.head + sizes.head[1:], rows)}"


def structures(report):
    left_out = [text for text in report.paragraphs() if text.startswith("**Not measured:**")]
    shown = {WORKLOAD: workload(report, WORKLOAD)}
    rows = report.table(PARTIES, "").rows
    names, overlaps = (list(dict.fromkeys(row[column] for row in rows)) for column in (0, 1))
    cells = {(name, overlap): f"{bytes_} / {nodes}" for name, overlap, bytes_, nodes in rows}
    shown[PARTIES] = grid(["deduplication / node sharing", *(f"{overlap} in common" for overlap in overlaps)],
                          [[name, *(cells.get((name, overlap), "") for overlap in overlaps)] for name in names])
    conditions = rendered([*report.section(""), *left_out])
    return part(TITLES["structures"], notes("structures"), conditions, shown), {}, "", None


def ledgers(report):
    rates = report.table(TITLES["ledgers"], "what")
    purge = Report(report.path.with_name("purge.md"), "`make bench-purge`")
    steps = purge.table("A purge", "step")
    text = part(TITLES["ledgers"], notes("ledgers"), "", {
        "Rates, with goals": grid(rates.head, rates.rows),
        "A purge of a million journals": grid(steps.head, steps.rows),
    })
    return text, {}, verdicts([[row[0], row[3]] for row in rates.rows if row[2]]), None


def state(report):
    blocks, goals = (report.table(TITLES["state"], first) for first in ("", "what"))
    conditions = rendered(text for text in report.section(TITLES["state"]) if isinstance(text, str))
    text = part(TITLES["state"], notes("state"), conditions, {
        "State goals": grid(goals.head, numbered(goals.rows)),
        "Blocks": grid(blocks.head, blocks.rows),
    })
    return text, {}, verdicts(goals.rows), None


def when(path):
    return datetime.date.fromtimestamp(path.stat().st_mtime).isoformat()


def kept(title, docs):
    """A part of the present page, a map from names in docs/benchmarks/ to its pictures, and its row
    in the table of all parts."""
    path = docs / "benchmarks.md"
    old = path.read_text() if path.is_file() else ""
    found = re.search(rf"^## {re.escape(title)}$.*?(?=^## |\Z)", old, re.MULTILINE | re.DOTALL)
    row = re.search(rf"^\| (\[{re.escape(title)}\].*) \|$", old, re.MULTILINE)
    if not found or not row:
        raise PageError(f"{path} has no part {title!r} that could be kept")
    text = found[0].strip()
    files = {name: docs / "benchmarks" / name for name in re.findall(r"\]\(benchmarks/([^)]+\.svg)\)", text)}
    return text, files, [cell.strip() for cell in row[1].split("|")]


def page(options):
    """The page's text, and a map from names in docs/benchmarks/ to files."""
    revision = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True,
                              check=False).stdout.strip()
    texts, files, summary = [], {}, []
    for name, make, path, measured, write in (
        ("engine", "make bench", options.engine, options.engine_measured, engine),
        ("cluster", "make bench-cluster", options.cluster, options.cluster_measured, cluster),
        ("structures", "make bench-structures", options.structures, options.structures_measured, structures),
        ("ledgers", "make bench-ledger", options.ledgers, options.ledgers_measured, ledgers),
        ("state", "make bench-state", options.state, options.state_measured, state),
    ):
        if name in options.keep:
            text, more, row = kept(TITLES[name], options.docs)
            summary.append(row)
            texts.append(text)
            files.update(more)
            continue
        report = Report(path, f"`{make}`")
        text, more, goals, own = write(report)
        title = text.splitlines()[0].lstrip("# ")
        anchor = re.sub(r"[^a-z0-9 ]", "", title.lower()).replace(" ", "-")
        measured = measured or f"{own or revision or 'unknown'}, {when(report.path)}"
        summary.append([f"[{title}](#{anchor})", f"`{make}`", measured, goals])
        texts.append(text)
        files.update(more)
    table = grid(["part", "command", "measured at", "goals"], summary)
    return "\n\n".join([HEAD.rstrip(), notes("intro")[""], table, *texts]) + "\n", files


def write(options):
    text, files = page(options)
    directory = options.docs / "benchmarks"
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.svg"):
        if old.name not in files:
            old.unlink()
    for name, source in files.items():
        if source != directory / name:
            shutil.copyfile(source, directory / name)
    (options.docs / "benchmarks.md").write_text(text)


def parse(arguments=None):
    target = ROOT / "target"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, path in (("engine", target / "bench" / "bench-report.md"),
                       ("cluster", target / "bench-cluster" / "report.md"),
                       ("structures", target / "bench-structures" / "structures.md"),
                       ("ledgers", target / "bench-ledger" / "report.md"),
                       ("state", target / "bench-state" / "report.md")):
        parser.add_argument(f"--{name}", type=pathlib.Path, default=path, metavar="FILE", help="the report (%(default)s)")
        parser.add_argument(f"--{name}-measured", metavar='"REVISION, DATE"',
                            help="default: the report's revision or else the checked out one, and the day of the file")
    parser.add_argument("--keep", action="append", default=[], choices=TITLES, metavar="PART",
                        help="leave this part as the page has it: engine, cluster, structures, ledgers or state; may be repeated")
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs", metavar="DIR")
    return parser.parse_args(arguments)


def main():
    options = parse()
    try:
        write(options)
    except (PageError, OSError) as error:
        print(f"benchmarks-page: {error}", file=sys.stderr)
        return 1
    print(options.docs / "benchmarks.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
