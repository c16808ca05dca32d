"""Write the JSON Schemas of what leaves the product: `python -m caveat.schema docs`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from caveat.report import Report
from caveat_tools import outcome


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema of `caveat ask --json`."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **Report.model_json_schema(by_alias=True, mode="serialization")}


FILES: Final = {"outcome.schema.json": outcome.schema, "report.schema.json": report_schema}


def main(folder: Path) -> None:
    """Write both files into `folder`."""
    for name, schema in FILES.items():
        (folder / name).write_text(json.dumps(schema(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
