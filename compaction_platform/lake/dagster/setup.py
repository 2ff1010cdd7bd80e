"""The set-up job: creates what declared tables need. Safe to run again at any time."""

from collections.abc import Callable, Sequence

import dagster as dg

from compaction_platform.errors import CompactionError
from compaction_platform.lake.dagster.provisioning import HasPrerequisites, Prerequisite, PrerequisiteUnmet
from compaction_platform.lake.dagster.resources import LakeResource
from compaction_platform.settings import Settings

OUTCOMES = {True: "created", False: "was there", None: "not needed here"}


def prerequisites_of(tree: dg.ComponentTree) -> list[Prerequisite]:
    """The needs of everything declared, each once, in the order of declaration."""
    components = tree.get_all_components(of_type=dg.Component)  # type: ignore[type-abstract]
    needing = [component for component in components if isinstance(component, HasPrerequisites)]
    return list(dict.fromkeys(need for component in needing for need in component.needs()))


def ensure_prerequisites(
    needs: Sequence[Prerequisite], settings: Settings, say: Callable[[str], None]
) -> list[tuple[str, str]]:
    """Meet all needs that can be met; then raise if any could not."""
    outcomes, problems = [], []
    for need in needs:
        try:
            outcome = OUTCOMES[need.ensure(settings)]
        except CompactionError as error:
            outcome = "failed"
            problems.append(str(error))
        except Exception as error:  # noqa: BLE001 (whatever a store or database answers is this need's outcome)
            outcome = "failed"
            first_line = (str(error).strip() or "no message").splitlines()[0]
            problems.append(f"{need.description}: {type(error).__name__}: {first_line}.")
        say(f"{need.description}: {outcome}")
        outcomes.append((need.description, outcome))
    if problems:
        listed = "\n".join(f"- {problem}" for problem in dict.fromkeys(problems))
        raise PrerequisiteUnmet(f"set-up is not complete; run it again when this is mended:\n{listed}")
    return outcomes


def setup_job(needs: Sequence[Prerequisite]) -> dg.JobDefinition:
    @dg.op(description="Create the buckets, namespaces, tables and database schemas that are declared and missing.")
    def create_what_is_missing(context: dg.OpExecutionContext, lake: LakeResource) -> None:
        outcomes = ensure_prerequisites(needs, lake.settings(), context.log.info)
        records = [dg.TableRecord({"what": what, "outcome": outcome}) for what, outcome in outcomes]
        context.add_output_metadata(
            {
                "created": sum(outcome == "created" for _, outcome in outcomes),
                "was_there": sum(outcome == "was there" for _, outcome in outcomes),
                "needs": dg.MetadataValue.table(records) if records else "nothing is declared",
            }
        )

    @dg.job(name="setup", description="Create what the declared tables need. Safe to run again.")
    def setup() -> None:
        create_what_is_missing()

    return setup
