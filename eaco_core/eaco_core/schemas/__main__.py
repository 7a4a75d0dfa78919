"""Print the JSON Schema of one line of a history."""

from __future__ import annotations

import json
import sys

from eaco_core.schemas import history_schema

if __name__ == "__main__":
    sys.stdout.write(json.dumps(history_schema(), indent=1) + "\n")
