"""`compaction archive …`: what a person decides about archived ranges."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from compaction_platform.errors import CompactionError
from compaction_platform.lake.dagster.terminal import console, say
from compaction_platform.settings import package_directory

if TYPE_CHECKING:
    from compaction_platform.archive.config import ArchivedChain
    from compaction_platform.settings import Settings

app = typer.Typer(no_args_is_help=True, help="What a person decides about archived ranges of a chain.")
ChainId = Annotated[int, typer.Argument(help="The chain_id of a ColdRanges declaration.")]
RangeKey = Annotated[str, typer.Argument(help="A range of blocks: 1000000-1010000, the end not included.")]


def _archive(chain_id: int) -> "tuple[ArchivedChain, Settings]":
    """The declaration of this chain, and the settings to work on it with."""
    import dagster as dg

    from compaction_platform.archive.component import ColdRanges
    from compaction_platform.settings import load_settings

    tree = dg.ComponentTree.for_project(package_directory())
    declared = {each.chain_id: each.archive() for each in tree.get_all_components(of_type=ColdRanges)}
    if chain_id not in declared:
        known = ", ".join(str(each) for each in sorted(declared)) or "none"
        raise CompactionError(f"no chain {chain_id} is declared in defs/. There are: {known}.")
    return declared[chain_id], load_settings()


@app.command("status")
def archive_status(chain_id: ChainId) -> None:
    """Show the head, and the state of every range that is archived or being worked on."""
    from compaction_platform.archive.chain.status import chain_status
    from compaction_platform.archive.hot.snapshot import hot_url
    from compaction_platform.archive.ledger.ledger import Ledger

    archive, settings = _archive(chain_id)
    url = hot_url(archive, settings)
    standing = chain_status(archive, url, remember=False)
    finality = standing.observed.finality
    known = "cannot be told" if finality.finalized is None else f"up to block {finality.finalized}"
    console.print(f"final: {known} ({finality.why})", markup=False, highlight=False)
    table = Table("blocks (end not included)", "version", "state", "rows", "remark")
    for version in Ledger(url, chain_id).versions():
        rows = sum(manifest.rows for manifest in version.manifests.values())
        withheld = version.withheld_because and f"purge withheld: {version.withheld_because}"
        remark = Text(version.invalid_because or withheld or version.error or "")
        table.add_row(version.blocks.key, str(version.version), version.state, f"{rows:,}", remark)
    for blocks in standing.missing:
        table.add_row(blocks.key, "", "final, not archived", "", "")
    console.print(table)


@app.command("restore")
def archive_restore(chain_id: ChainId, blocks: RangeKey) -> None:
    """Bring the hot rows of a purged range back from its cold files. The cold files stay."""
    from compaction_platform.archive.chain.block_range import BlockRange
    from compaction_platform.archive.jobs.restore_range import RestoreRun

    archive, settings = _archive(chain_id)
    RestoreRun(archive, settings, say, owner="compaction archive restore").run(BlockRange.parsed(blocks))


@app.command("believe")
def archive_believe(chain_id: ChainId, blocks: RangeKey) -> None:
    """Take back what is held against a range: that it is marked invalid, or that its purge is withheld."""
    from compaction_platform.archive.chain.block_range import BlockRange
    from compaction_platform.archive.hot.snapshot import hot_url
    from compaction_platform.archive.ledger.ledger import Ledger

    archive, settings = _archive(chain_id)
    ledger = Ledger(hot_url(archive, settings), chain_id)
    version = ledger.live(BlockRange.parsed(blocks))
    if version is None or (version.invalid_because is None and version.withheld_because is None):
        raise CompactionError(f"nothing is held against blocks {blocks} (end not included).")
    ledger.believe_again(version)
    say(f"version {version.version} of blocks {blocks} (end not included) counts as any other again")


@app.command("withhold")
def archive_withhold(
    chain_id: ChainId, blocks: RangeKey, because: Annotated[str, typer.Option(help="Why; shown in `status`.")]
) -> None:
    """Do not purge a range, until `believe` takes this back or a new version is committed."""
    from compaction_platform.archive.chain.block_range import BlockRange
    from compaction_platform.archive.hot.snapshot import hot_url
    from compaction_platform.archive.ledger.ledger import Ledger

    archive, settings = _archive(chain_id)
    ledger = Ledger(hot_url(archive, settings), chain_id)
    version = ledger.live(BlockRange.parsed(blocks))
    if version is None:
        raise CompactionError(f"blocks {blocks} (end not included) are not archived.")
    ledger.withhold(version, because)
    say(f"blocks {blocks} (end not included) are not purged until this is taken back")


@app.command("adopt")
def archive_adopt(chain_id: ChainId) -> None:
    """Take over a chain's cold files from another database, for good: that one is refused from then on."""
    _rebuild(chain_id, "adopt")


@app.command("rebuild")
def archive_rebuild(chain_id: ChainId) -> None:
    """Make the state of all ranges from the cold files, after the hot database was restored from a backup."""
    _rebuild(chain_id, "rebuild")


def _rebuild(chain_id: int, act: str) -> None:
    from compaction_platform.archive.jobs.rebuild_ledger import RebuildRun
    from compaction_platform.lake.spark.parallel_map import ParallelMap

    archive, settings = _archive(chain_id)
    run = RebuildRun(archive, settings, lambda: ParallelMap(None, 4), say, owner=f"compaction archive {act}")
    run.ledger.create_tables()
    done = run.adopt() if act == "adopt" else run.rebuild()
    for state, count in sorted(done.states.items()):
        say(f"{count:,} ranges: {state}")
    for blocks in done.published_again:
        say(f"{blocks.key} (end not included) was published again: its publication had not been finished")
    if done.problems:
        listed = "\n".join(f"- {problem}" for problem in done.problems)
        raise CompactionError(f"the ledger is made; look at these, nothing of them was deleted:\n{listed}")


@app.command("forget-head")
def archive_forget_head(chain_id: ChainId) -> None:
    """Believe the chain's next head whatever was seen before: after a deep reorganisation, or if it was begun anew."""
    from compaction_platform.archive.hot.snapshot import hot_url
    from compaction_platform.archive.ledger.ledger import Ledger

    archive, settings = _archive(chain_id)
    forgotten = Ledger(hot_url(archive, settings), chain_id).forget_head()
    say("the head that was believed last is forgotten" if forgotten else "no head was remembered")
