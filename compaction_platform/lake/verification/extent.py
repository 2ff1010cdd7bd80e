"""How much of a run the second reader reads: a word of YAML. It stands alone, so that a declaration loads no reader."""

from typing import Literal

Extent = Literal["sample", "all", "none"]
