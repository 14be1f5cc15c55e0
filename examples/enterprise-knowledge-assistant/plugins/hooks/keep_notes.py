"""A command hook: no note is deleted. Any program can be one: it reads the call as JSON and prints its answer."""

import json
import sys

call = json.load(sys.stdin)
title = call["tool_input"].get("title", "this note")
reason = f"notes are kept for the record, and '{title}' is one; ask its owner to archive it instead."
print(json.dumps({"decision": "deny", "reason": reason}))
