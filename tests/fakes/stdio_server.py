"""A small MCP server over stdio that does what broken ones do. It needs nothing but Python, so it starts at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

TOOLS = ("environment", "echo", "die", "flood", "noise", "hang", "spawn", "huge", "deaf")


def answer(message: dict[str, Any]) -> Any:
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        capabilities = {"tools": {"listChanged": False}}
        info = {"name": "stdio", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": info}
    if method == "tools/list":
        schema = {"type": "object", "additionalProperties": True}
        return {"tools": [{"name": name, "description": name, "inputSchema": schema} for name in TOOLS]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": act(params["name"], params.get("arguments") or {})}]}
    return None


def act(name: str, arguments: dict[str, Any]) -> str:
    if name == "environment":
        return json.dumps(dict(os.environ))
    if name == "echo":
        return str(arguments["text"])
    if name == "die":
        os._exit(3)
    if name == "flood":
        while True:
            os.write(1, b"x" * 65536 + (b"\n" if arguments.get("lines") else b""))
            os.write(2, b"y" * 65536)
    if name == "noise":
        sys.stdout.write("debug: careless\n{broken json\n\n")
        return "noisy"
    if name == "spawn":
        ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        return str(subprocess.Popen([sys.executable, "-c", ignore], stdin=subprocess.DEVNULL).pid)
    if name == "huge":
        return "x" * int(arguments["size"])
    time.sleep(600)  # hang, and deaf: nothing is read any more
    return ""


def main() -> None:
    if "--deaf" in sys.argv:
        time.sleep(600)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = answer(message)
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if result is None:
            reply["error"] = {"code": -32601, "message": "Method not found"}
        else:
            reply["result"] = result
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
    if "--stay" in sys.argv:
        time.sleep(600)


if __name__ == "__main__":
    main()
